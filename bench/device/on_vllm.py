"""What vLLM computes, in a process of its own Python: it never shares one with the native engine.

PYTHON -m bench.device.on_vllm rows|steps WHAT FILE
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from bench.device.scenes import CAPACITY, refusals, rows
from bench.device.shapes import save, save_without_weights
from bench.device.speed import Timing, Wanted, speed
from services.contract.errors import StartError
from services.engine.spec import ModelSpec

if TYPE_CHECKING:
    from bench.device.check import Answer

SHARE = 0.2
"""Of a GPU's memory, for the tiny model that is checked."""
RANDOM = "random"
"""The load format of `_make_random`."""


# --- the process that asks ----------------------------------------------------


def by_vllm(python: str, model: Any, device: str, threads: int) -> "Callable[[str], Answer]":
    """What vLLM says of a model on a device, each time in another process of `python`."""

    def answer(dtype: str) -> "Answer":
        with TemporaryDirectory() as folder:
            save(model, Path(folder))
            spec = ModelSpec(
                folder, dtype, device, threads, CAPACITY, engine="vllm", memory_share=SHARE
            )
            found: Answer = _asked(python, "rows", asdict(spec))
            return found

    return answer


def steps_by_vllm(python: str, wanted: Wanted) -> list[Timing]:
    """Times of vLLM's steps."""
    return [Timing(*one) for one in _asked(python, "steps", asdict(wanted))]


def _asked(python: str, what: str, given: dict[str, Any]) -> Any:
    """What a child writes. Raises StartError, after all that it said, where it fails."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "answer"
        command = [python, "-m", "bench.device.on_vllm", what, json.dumps(given), str(file)]
        said = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if said.returncode or not file.exists():
            print(said.stdout, file=sys.stderr)
            last = next((line for line in said.stdout.splitlines()[::-1] if line.strip()), "")
            raise StartError(f"vLLM's process ended with {said.returncode}: {last.strip()}")
        return torch.load(file, weights_only=True)


# --- the process with vLLM ----------------------------------------------------


def _rows(given: dict[str, Any]) -> "Answer":
    from services.engine.vllm import loading

    engine = loading.load(ModelSpec(**given))
    return rows(engine), refusals(engine)


def _steps(given: dict[str, Any]) -> list[tuple[Any, ...]]:
    from services.engine.vllm import loading

    wanted = Wanted(**given)
    loading.installed()
    with TemporaryDirectory() as folder:
        save_without_weights(wanted.shape, Path(folder))
        spec = wanted.spec(folder, "vllm")
        loading.prepare(spec.device)
        _make_random()
        # Of several devices, the one that is asked for is the only one that is seen from here on.
        seen = replace(spec, device=spec.device.partition(":")[0])
        engine = loading.load(seen, load_format=RANDOM)
    part: Any = engine._compute.__self__  # type: ignore[attr-defined]
    return [tuple(one) for one in speed(engine, wanted, part.loaded.device)]


def _make_random() -> None:
    """Let vLLM make weights up, as large as trained ones: those of its own dummies vanish."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    @register_model_loader(RANDOM)
    class _Random(DummyModelLoader):  # type: ignore[misc]
        @torch.no_grad()
        def load_weights(self, model: Any, _: Any) -> None:
            for weight in model.parameters():
                weight.fill_(1.0) if weight.dim() == 1 else weight.normal_(std=0.02)


def main() -> None:
    """Do what is asked, and write it."""
    what, given, file = sys.argv[1:]
    try:
        answer = {"rows": _rows, "steps": _steps}[what](json.loads(given))
    except StartError as error:
        sys.exit(str(error))
    torch.save(answer, file)


if __name__ == "__main__":
    main()
