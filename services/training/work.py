"""The work folder of a run, from which it goes on after a stop.

    plan.json         what decides the result; another plan is refused
    texts/            what the target wrote, in shards
    checkpoint.pt     the training's state
    seconds.json      time spent writing

One run at a time may use it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.runtime.atomic_file import replacing
from services.training.options import WritingOptions

#: Options that decide the texts. The others change speed, place or form at most.
_DECIDING = ("target", "write", "temperatures", "prompt_tokens", "answer_tokens", "dtype", "seed")
_FILES = ("prompts", "openings")


def plan_of(options: WritingOptions, weights: str, training: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the result of these options, as JSON has it; `training` is added to it."""
    plan: dict[str, Any] = {name: getattr(options, name) for name in _DECIDING}
    plan |= {**training, "weights of the target": weights}
    plan |= {f"content of {name}": _content(getattr(options, name)) for name in _FILES}
    plan["content of exclude"] = sorted(str(_content(path)) for path in options.exclude)
    known: dict[str, Any] = json.loads(json.dumps(plan))
    return known


def digest(parts: Iterable[bytes]) -> str:
    """What tells contents apart in a plan: 16 hexadecimal digits of all parts, one by one read."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()[:16]


def _content(path: Path | None) -> str | None:
    return None if path is None else digest([path.read_bytes()])


class WorkFolder:
    """The folder of an unfinished run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def texts(self) -> Path:
        """Where the shards are."""
        return self.path / "texts"

    def require_plan(self, plan: Mapping[str, Any]) -> None:
        """Raise StartError, naming what differs, when this is the folder of another run."""
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return
        try:
            known = json.loads((self.path / "plan.json").read_text())
        except (OSError, ValueError):
            raise StartError(f"--work: {self.path} is there, but is no work folder") from None
        differing = [name for name in plan if known.get(name) != plan[name]]
        if differing:
            told = "; ".join(_difference(name, known.get(name), plan[name]) for name in differing)
            raise StartError(f"--work: {self.path} belongs to another plan: {told}")

    def make(self, plan: Mapping[str, Any]) -> None:
        """Create the folder with its plan, if need be; StartError where that cannot be."""
        try:
            self.texts.mkdir(parents=True, exist_ok=True)
            _replace(self.path / "plan.json", json.dumps(plan, indent=2) + "\n")
        except OSError as error:
            raise StartError(f"--work: {self.path}: {error.strerror}") from error

    @property
    def seconds(self) -> float:
        """Time spent writing texts."""
        try:
            return float(json.loads((self.path / "seconds.json").read_text()))
        except (OSError, ValueError):
            return 0.0

    @seconds.setter
    def seconds(self, value: float) -> None:
        _replace(self.path / "seconds.json", json.dumps(round(value, 1)))


def _difference(name: str, known: Any, asked: Any) -> str:
    if " of " in name:
        return f"another {name}"
    return f"--{name.replace('_', '-')} was {_typed(known)}, not {_typed(asked)}"


def _typed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _replace(path: Path, text: str) -> None:
    with replacing(path) as scratch:
        scratch.write_text(text)
