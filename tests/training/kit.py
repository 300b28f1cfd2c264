"""A training small enough for a test: a tiny random target, a few thousand laws."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.contract.errors import StartError
from services.engine.native import NativeEngine
from services.engine.native.dialogue import dialogue_of, tokenizer_of
from services.engine.spec import ModelSpec
from services.training.options import HeadOptions
from services.training.reporting import Stopped
from services.training.texts import Text, load_texts
from services.training.writing import Writer, WritingPlan


def small(target: Path, out: Path, **changed: object) -> HeadOptions:
    """Options of a head's training that takes a few seconds."""
    given = {"head_tokens": 200, "write": 2400, "train": 6000, "batch": 16}
    given |= {"temperatures": (0.0, 1.0), "prompt_tokens": 24, "answer_tokens": 40}
    given |= {"dtype": "float32", "device": "cpu", "learning_rate": 5e-3}
    given |= {"command": "paceline train head"}
    return replace(HeadOptions(str(target), out, **given), **changed)


class Quiet:
    """A reporter that remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.stages: list[tuple[str, int, int]] = []
        self.done: list[int] = []
        self.figures: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def stage(self, name: str, total: int, done: int) -> None:
        self.stages.append((name, total, done))

    def advance(self, done: int, figures: str = "") -> None:
        self.done.append(done)
        self.figures.append(figures)


class StopsAt(Quiet):
    """Stops the run once a stage has got so far."""

    def __init__(self, stage: str, done: int) -> None:
        super().__init__()
        self._at = stage, done

    def advance(self, done: int, figures: str = "") -> None:
        super().advance(done, figures)
        if self.stages[-1][0] == self._at[0] and done >= self._at[1]:
            raise Stopped("by a test")


def config(options: HeadOptions) -> dict[str, Any]:
    """What a head's folder says of it."""
    return json.loads((options.out / "config.json").read_text())


def card(options: HeadOptions) -> dict[str, Any]:
    """The card of a head."""
    return config(options)["paceline"]["card"]


def weights(options: HeadOptions) -> bytes:
    """The tensors of a head."""
    return (options.out / "model.safetensors").read_bytes()


def texts_of(work: Path) -> dict[int, Text]:
    """The texts of a work folder, by number."""
    return {text.number: text for text in load_texts(work / "texts")}


def engine_of(target: Path) -> NativeEngine:
    return NativeEngine.load(ModelSpec(str(target), dtype="float32", kv_capacity_tokens=100_000))


def plan_for(engine: NativeEngine, **options: object) -> WritingPlan:
    dialogue = dialogue_of(tokenizer_of(engine.bundle))
    given = {"seed": 5, "prompt_tokens": 12, "answer_tokens": 20, **options}
    return WritingPlan(dialogue, **given)


def write(engine: NativeEngine, plan: WritingPlan, numbers: range, batch: int) -> dict[int, Text]:
    """Texts of these numbers."""
    steps = Writer(engine, plan, batch).write(iter(numbers))
    return {text.number: text for finished, _ in steps for text in finished}


def refused(run: Callable[[Any, Quiet], object], options: Any) -> str:
    """The line that a run of these options ends with, before it has left anything."""
    before = set(options.out.parent.iterdir())
    with pytest.raises(StartError) as caught:
        run(options, Quiet())
    assert set(options.out.parent.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)
