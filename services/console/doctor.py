"""`paceline doctor`: what this machine has to run models, and what would be chosen for one."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import services.engine.start as start
from services.cluster.flags import complain
from services.contract.errors import Overloaded, StartError
from services.engine.checkpoint.heads import FLOOR
from services.engine.spec import ModelSpec
from services.runtime.affinity import available_cores
from services.runtime.options import option, options


@options
class DoctorOptions:
    """What is looked at."""

    target: str = option(
        "A target model, to be told how it would be run: as paceline up takes it.",
        "",
        section="Models",
    )
    head: str = option(
        "An EAGLE-3 head of the target, to be told how much of what that says it says, under each "
        "reading that its layout leaves open; runs both.",
        "",
    )
    redis: str | None = option(
        "URL of a Redis, to be told whether orchestrators can use it, and what it keeps.",
        None,
        section="Redis",
        variable=True,
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a model's files say of it; `quantization`: its method, empty = none."""

    kind: str
    quantization: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Flags of `paceline up`, and why."""

    flags: str
    reason: str


def run_doctor(options: DoctorOptions) -> int:
    """Say what there is; the exit status, 1 = nothing here runs a model, or not this one."""
    engines, gpus = start.installed(), start.gpus()
    _show("machine", _machine())
    _show("devices", *(gpus or ["no GPU that torch sees"]))
    _show("engines", *(f"{one.name:<8} {one.version or one.problem}" for one in engines))
    try:
        checkpoint = read_checkpoint(options.target) if options.target else None
        choice = choose(engines, gpus, checkpoint)
        if checkpoint:
            _show("target", f"{options.target}: {_described(checkpoint)}")
        _show("choice", choice.flags, f"because {choice.reason}")
        if options.head:
            _show("head", *described_head(options.head, options.target))
        if options.redis:
            from services.console.doctor_redis import describe

            _show("redis", *describe(options.redis))
    except StartError as error:
        return complain("doctor", error, status=1)
    return 0


def described_head(folder: str, target: str) -> list[str]:
    """A line for each way to read a head; StartError where none of them is right."""
    if not target:
        raise StartError("--head: give its model with --target")
    head = start.head(ModelSpec(folder, base=target))
    engine = start.load(ModelSpec(target, dtype=start.chosen_format(start.AUTO)))
    try:
        found = start.agreements(head, engine)
    except (Overloaded, ValueError) as error:
        raise StartError(f"head {folder}: {error}") from error
    best = max(found, key=lambda one: one.share)
    lines = [f"{one.share:>4.0%} of {one.tokens} tokens: {one.reading}" for one in found]
    if best.share < FLOOR:
        raise StartError(f"head {folder}: is hardly one of {target}: " + "; ".join(lines))
    return [f"{folder} says as much of what {target} says, by the way it is read:", *lines]


def choose(
    engines: Sequence[start.Installed], gpus: Sequence[str], checkpoint: Checkpoint | None
) -> Choice:
    """How a model is best run here. Raises StartError where it cannot be."""
    there = {one.name for one in engines if not one.problem}
    problems = "; ".join(f"{one.name}: {one.problem}" for one in engines if one.problem)
    quantized = checkpoint.quantization if checkpoint else ""
    if not there:
        raise StartError(f"no engine runs models here: {problems}")
    if quantized and "vllm" not in there:
        raise StartError(f"a checkpoint of {quantized} is run by vLLM alone; {problems}")
    engine = "vllm" if quantized or (gpus and "vllm" in there) else "native"
    if engine not in there:
        engine = there.pop()
    device = f" --verifier-device {gpus[0].split()[0]}" if gpus else ""
    dtype, why = _dtype(gpus, engine)
    return Choice(f"--engine {engine}{device} --dtype {dtype}", f"{_why(engine, gpus)}; {why}")


def _why(engine: str, gpus: Sequence[str]) -> str:
    if engine == "native":
        return "it starts in seconds and needs nothing else" if not gpus else "vLLM is not here"
    return "vLLM has the kernels for this GPU" if gpus else "only vLLM runs it here"


def _dtype(gpus: Sequence[str], engine: str) -> tuple[str, str]:
    if gpus:
        return "bfloat16", "GPUs are fastest in bfloat16"
    chosen = start.chosen_format(start.AUTO, engine=engine)
    return chosen, f"this CPU {_SUITS[chosen]}"


_SUITS = {
    "bfloat16": "multiplies bfloat16",
    "float16": "has no bfloat16 of its own, and reads half of float32",
    "float32": "multiplies nothing narrower by itself",
}


def read_checkpoint(name: str) -> Checkpoint:
    """What the files of a model say. Raises StartError for a name that stands for none."""
    from services.engine.checkpoint.files import locate

    source = locate(name)
    if source.suffix == ".gguf":
        return Checkpoint("GGUF")
    config = _config(source)
    quantized = config.get("quantization_config")
    method = quantized.get("quant_method", "unknown") if isinstance(quantized, dict) else ""
    return Checkpoint(str(config.get("model_type", "unknown"))[:64], str(method)[:64])


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise StartError(f"model {folder}: config.json: {type(error).__name__}") from None
    return config if isinstance(config, dict) else {}


def _described(checkpoint: Checkpoint) -> str:
    quantized = f", quantized by {checkpoint.quantization}" if checkpoint.quantization else ""
    return checkpoint.kind + quantized


def _machine() -> str:
    memory = psutil.virtual_memory()
    size = f"{memory.total / 1e9:.1f} GB, {memory.available / 1e9:.1f} GB free"
    return f"{len(available_cores())} cores ({platform.machine()}), {size}"


def _show(label: str, *lines: str) -> None:
    for line in lines:
        print(f"{label:<9} {line}")
        label = ""
