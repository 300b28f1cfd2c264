"""Where a step's milliseconds go: in Python's functions, and in the device's kernels."""

import cProfile
import io
import pstats
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity

STEPS = 10
FUNCTIONS, KERNELS = 22, 14
"""Most lines of each table."""


def profiled(step: Callable[[], object], device: str) -> str:
    """Two tables of so many `STEPS`, the dearest lines first; neither profiler slows the other."""
    return f"{_functions(step)}\n{_kernels(step, device)}"


def _functions(step: Callable[[], object]) -> str:
    profile, text = cProfile.Profile(), io.StringIO()
    profile.enable()
    for _ in range(STEPS):
        step()
    profile.disable()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(FUNCTIONS)
    return "\n".join(line for line in text.getvalue().splitlines() if line.strip())


def _kernels(step: Callable[[], object], device: str) -> str:
    on_gpu = torch.device(device).type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(STEPS):
            step()
        if on_gpu:
            torch.cuda.synchronize(device)
    key = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    table: str = profile.key_averages().table(sort_by=key, row_limit=KERNELS)
    return table
