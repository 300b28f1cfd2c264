"""Engines by what they run: the one place that knows which there are.

Each is imported when it is asked for: an orchestrator's image holds none of them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, cast

from services.contract.errors import StartError
from services.contract.types import Role
from services.engine.port import Capability

if TYPE_CHECKING:
    from services.engine.eagle.engine import EagleEngine
    from services.engine.eagle.measuring import Agreement
    from services.engine.machines import Machines
    from services.engine.port import Engine, SelfDrafting, StateDrafting
    from services.engine.spec import ModelSpec
    from services.engine.vllm.ranks import Ranks as Ranks


AUTO = "auto"
"""Stands for a number format that is chosen where the model runs."""


@dataclass(frozen=True, slots=True)
class Installed:
    """An engine that models can run on: its version, or why it is not to be had here."""

    name: str
    version: str = ""
    problem: str = ""


def installed() -> list[Installed]:
    """The engines, the default one first. Imports none of them."""
    found = [_version_of("native", ("torch", "transformers"))]
    from services.engine.vllm import loading

    try:
        return [*found, Installed("vllm", f"vllm {loading.installed()}")]
    except StartError as error:
        return [*found, Installed("vllm", problem=str(error).removeprefix("engine vllm: "))]


def _version_of(name: str, packages: Sequence[str]) -> Installed:
    try:
        versions = [f"{package} {metadata.version(package)}" for package in packages]
    except metadata.PackageNotFoundError as error:
        return Installed(name, problem=f"{error.name} is not installed")
    return Installed(name, ", ".join(versions))


def gpus() -> list[str]:
    """The names of the GPUs that torch sees; none without torch."""
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    count = torch.cuda.device_count()
    return [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(count)]


def chosen_format(asked: str, device: str = "cpu", engine: str = "native") -> str:
    """The number format asked for; of `auto` the fastest one there for a target."""
    if asked != AUTO:
        return asked
    if device != "cpu":
        return "bfloat16"
    if importlib.util.find_spec("torch") is None:
        return "float32"
    from services.engine import number_formats

    if number_formats.cpu().bfloat16:
        return "bfloat16"
    return "float16" if engine == "native" and number_formats.cpu().half else "float32"


def load(spec: ModelSpec, others: Ranks | None = None) -> Engine:
    """A model in this process, with the threads of `spec`; vLLM's, split over `others` too.

    Raises StartError.
    """
    if spec.engine == "vllm":
        from services.engine.vllm import loading

        return loading.load(spec, others)
    from services.engine.native import NativeEngine

    return NativeEngine.load(spec)


def head(spec: ModelSpec) -> StateDrafting:
    """The EAGLE-3 head in the folder `spec.model`, for `spec.base` or the target that it names.

    Raises StartError.
    """
    from services.engine.eagle.loading import load_head

    return load_head(spec)


def settle_head(head: StateDrafting, target: Engine, floor: float) -> None:
    """Read a head as it says most of what its target says; see `eagle.measuring`.

    Raises StartError where that is less than `floor`, of 1.
    """
    from services.engine.eagle.measuring import settle

    settle(cast("EagleEngine", head), target, floor)


def agreements(head: StateDrafting, target: Engine) -> Sequence[Agreement]:
    """How much of it the head says, by the ways to read it; ValueError, Overloaded."""
    from services.engine.eagle import measuring

    return measuring.agreements(cast("EagleEngine", head), target)


def self_drafting(engine: Engine, what: str) -> SelfDrafting:
    """The same engine, for `what` drafts with it; StartError where it cannot."""
    if Capability.SELF_DRAFTING not in engine.capabilities:
        raise StartError(f"{what}: the engine of {engine.model_id} drafts for nobody; use native")
    return cast("SelfDrafting", engine)


def ranks(
    count: int, cpus: Sequence[int], machines: Machines | None = None
) -> AbstractContextManager[Ranks | None]:
    """The other processes of a model that is split over `count`; None where it is not."""
    if count == 1:
        return nullcontext()
    from services.engine.vllm.ranks import Ranks

    return Ranks(count, cpus=cpus, machines=machines)


def follow(count: int, machines: Machines) -> int:
    """Be the processes of this machine, which is not the first one; the exit status."""
    from services.engine.vllm import joining

    return joining.run(machines, count)


def synthetic(
    file: Path, role: Role, *, threads: int | None = None, kv_capacity_tokens: int | None = None
) -> Engine:
    """No model: forwards that take the times that a file gives. Raises StartError."""
    from services.engine.synthetic.engine import draft_engine, target_engine
    from services.engine.synthetic.spec import read_spec
    from services.engine.threads import pin

    pin(threads)
    make = target_engine if role is Role.VERIFIER else draft_engine
    return make(read_spec(file), kv_capacity_tokens)
