"""What a client says of sessions and speculation, for which the OpenAI API has no words.

And of sampling, what a gateway drops. It stands in the id of the request, the one text of a
client's own that smg 1.13.0 hands on, or in the metadata of the call:

    paceline(session=night-7;method=ngram;num_speculative_tokens=4)
    paceline(logit_bias=50256:-100,11:5;min_tokens=20)
    x-paceline-session: night-7

Behind the parenthesis stands what a gateway adds: `-p1` for the second of several prompts, whose
session is then `night-7-p1`, and an id of its own. Values are checked where those of our own API
are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.frontdoor.requests import GenerationRequest, SpeculationRequest
from services.contract.errors import InvalidRequest

MOST_CHARACTERS = 512
"""Of an id that says something."""

_OPENING, _METADATA = "paceline(", "x-paceline-"
_WRITTEN = re.compile(r"paceline\(([^()]*)\)(-p[0-9]{1,6}(?![^-]))?.*", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,9}")
_BIAS = r"[0-9]{1,9}:-?[0-9]{1,3}(\.[0-9]{1,6})?"
_BIASES = re.compile(f"{_BIAS}(,{_BIAS})*")
_SHOWN = 160
_OF_SAMPLING = ("min_tokens", "logit_bias")
"""What smg 1.13.0 drops, from chats at least."""


@dataclass(frozen=True, slots=True)
class Extensions:
    """What was said. `session` is None where none was named; `sampling`: parameters by name."""

    session: str | None = None
    speculation: SpeculationRequest = field(default_factory=SpeculationRequest)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def added_to(self, request: GenerationRequest) -> GenerationRequest:
        """A gateway's request with what else was said."""
        return replace(
            request,
            request_id=self.session,
            speculation=self.speculation,
            sampling=replace(request.sampling, **self.sampling),
        )


def speaks(request_id: str) -> bool:
    """Whether an id says something, and so names no request alone."""
    return request_id.startswith(_OPENING)


def read(request_id: str, metadata: Iterable[tuple[str, Any]] | None) -> Extensions:
    """What the id and the metadata of a call say. Raises InvalidRequest naming what is wrong."""
    said, prompt = _in_id(request_id)
    for key, value in metadata or ():
        if key.startswith(_METADATA):
            _add(said, key.removeprefix(_METADATA).replace("-", "_"), str(value))
    session = said.pop("session", None)
    told = {name: READERS[name](name, value) for name, value in said.items()}
    sampling = {name: told.pop(name) for name in _OF_SAMPLING if name in told}
    named = session if session is None else session + prompt
    return Extensions(named, SpeculationRequest(**told), sampling)


def _in_id(request_id: str) -> tuple[dict[str, str], str]:
    """What an id says, by name, and which of several prompts it is for."""
    said: dict[str, str] = {}
    if not speaks(request_id):
        return said, ""
    if len(request_id) > MOST_CHARACTERS:
        allowed = f"at most {MOST_CHARACTERS} characters"
        raise InvalidRequest("request_id", f"{len(request_id)} characters", allowed)
    written = _WRITTEN.fullmatch(request_id)
    if written is None:
        raise InvalidRequest("request_id", request_id[:_SHOWN], "paceline(NAME=VALUE;...)")
    for one in filter(None, written[1].split(";")):
        name, _, value = one.partition("=")
        _add(said, name.strip(), value.strip())
    return said, written[2] or ""


def _add(said: dict[str, str], name: str, value: str) -> None:
    if name not in READERS:
        raise InvalidRequest("request_id or metadata", name[:_SHOWN], f"{', '.join(READERS)}")
    if name in said:
        raise InvalidRequest(name, value[:_SHOWN], "said once")
    said[name] = value


def _text(_name: str, value: str) -> str:
    return value


def _rule(_name: str, value: str) -> str:
    return value.upper()


def _number(name: str, value: str) -> int:
    if not _NUMBER.fullmatch(value):
        raise InvalidRequest(_field(name), value[:_SHOWN], "a whole number")
    return int(value)


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise InvalidRequest(_field(name), value[:_SHOWN], "true or false")
    return value == "true"


def _biases(name: str, value: str) -> dict[int, float]:
    found = _BIASES.fullmatch(value)
    if not found:
        raise InvalidRequest(_field(name), value[:_SHOWN], "TOKEN:BIAS,TOKEN:BIAS,...")
    pairs = (one.split(":") for one in value.split(","))
    return {int(token): float(bias) for token, bias in pairs}


def _field(name: str) -> str:
    return f"{'sampling' if name in _OF_SAMPLING else 'speculation'}.{name}"


READERS: dict[str, Callable[[str, str], Any]] = {
    "session": _text,
    "method": _text,
    "num_speculative_tokens": _number,
    "num_candidates": _number,
    "rejection_sample_method": _rule,
    "disable_speculative_decoding": _flag,
    "min_tokens": _number,
    "logit_bias": _biases,
}
"""What can be said: the session, fields of `SpeculationParams`, and of `SamplingParams`."""
