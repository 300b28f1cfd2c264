"""What is replayed: given times and agreement, or a published trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from bench.prompts import BenchPrompt
from bench.runner import WAVES, Schedule
from bench.synthetic.traces import DRAFTED, Trace, load_trace
from services.contract.errors import StartError
from services.engine.synthetic.spec import SyntheticSpec, complaint, read_spec

_VERIFIER = ("plain_ms", "verify_ms", "row_ms", "session_ms", "prompt_ms", "prompt_token_ms")
_PLACES = {name: ("verifier", name) for name in _VERIFIER} | {
    "draft_ms": ("drafter", "draft_ms"),
    "draft_session_ms": ("drafter", "session_ms"),
    "agreement": ("agreement", "rate"),
    "overlap": ("agreement", "overlap"),
    "seed": ("agreement", "seed"),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Times, agreement, the length of every output, and what was published of it (ms/token)."""

    spec: SyntheticSpec
    tokens: int
    published: Mapping[str, float] = field(default_factory=dict)


class Worlds(Schedule):
    """Outputs of made-up worlds: each repeat has its own, the same for every way to decode."""

    def groups(self, level: int, repeat: int = 0) -> list[tuple[BenchPrompt, ...]]:
        """One trial, of some waves of as many worlds as the level asks."""
        count = level * WAVES if level > 1 else 1
        texts = (f"world {repeat}-{number}" for number in range(count))
        return [tuple(BenchPrompt(number, "world", text) for number, text in enumerate(texts))]


def make_scenario(given: str | None, trace: str | None, tokens: int) -> Scenario:
    """From the flags `--synthetic` (a file or `plain_ms=22,...`) and `--trace` (a name).

    `tokens`: of an output that no trace tells the length of. Raises StartError.
    """
    if trace is not None:
        if given is not None:
            raise StartError("--trace: a trace has its own times, and --synthetic gives others")
        return of_trace(load_trace(trace))
    assert given is not None
    return Scenario(parse_times(given) if "=" in given else read_spec(Path(given)), tokens)


def of_trace(trace: Trace) -> Scenario:
    """The trace's agreement at its times; a verification takes the same whatever its size."""
    spec = {
        "name": trace.name,
        "verifier": {"plain_ms": trace.plain.token_ms, "verify_ms": trace.sd.verify_ms},
        "drafter": {"draft_ms": trace.sd.draft_ms},
        "agreement": {"accepted": trace.sd.accepted, "drafted": DRAFTED},
    }
    published = {
        "plain": trace.plain.ms_per_token,
        "fixed": trace.sd.ms_per_token,
        "amusd": trace.amusd.ms_per_token,
    }
    return Scenario(SyntheticSpec.model_validate(spec), len(trace.places), published)


def parse_times(text: str) -> SyntheticSpec:
    """The spec of `plain_ms=22,verify_ms=25.5,draft_ms=11.5,agreement=0.8`; raises StartError."""
    parts: dict[str, dict[str, str]] = {"verifier": {}, "drafter": {}, "agreement": {}}
    for one in text.split(","):
        name, _, value = (side.strip() for side in one.partition("="))
        if name not in _PLACES:
            raise StartError(f"--synthetic: {name!r} is not one of {', '.join(_PLACES)}")
        part, key = _PLACES[name]
        parts[part][key] = value
    try:
        return SyntheticSpec.model_validate(parts)
    except ValidationError as error:
        raise StartError(f"--synthetic: {complaint(error)}") from None
