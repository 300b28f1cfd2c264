"""What a caller heard of one session, and whether it may have heard just that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from paceline import Chunk, Complete, Event

_AFTERMATH_SECONDS = 5.0
_BY_CHANCE = ("standard", "block")
"""The rules under which the drafter has a part in which text it becomes."""


@dataclass(frozen=True, slots=True)
class Case:
    """One generation to ask for; `options` as `Client.generate` takes them.

    With a response format `problem` says in a line why a text is no answer, empty if it is one, and
    `early` tokens are well before the end of the shortest answer.
    """

    prompt: str
    options: Mapping[str, Any]
    problem: Callable[[str], str] | None = None
    early: int = 0

    @property
    def plain(self) -> dict[str, Any]:
        """The same without drafts."""
        return {**self.options, "disable_speculative_decoding": True}

    @property
    def rule(self) -> str:
        """Its verification rule as a request names it."""
        return str(self.options.get("rejection_sample_method", "auto"))

    @property
    def same_text(self) -> bool:
        """Whether its text is that of plain decoding."""
        return self.rule not in _BY_CHANCE

    def with_seed(self, seed: int) -> Self:
        """The same with another seed."""
        return replace(self, options={**self.options, "seed": seed})


@dataclass(frozen=True, slots=True)
class Drawn:
    """A text that chance and the drafter chose: `token_ids` followed `prompt`."""

    rule: str
    prompt: str
    temperature: float
    token_ids: tuple[int, ...]

    @classmethod
    def by(cls, case: Case, token_ids: Sequence[int]) -> Self:
        """What a case became."""
        return cls(case.rule, case.prompt, float(case.options["temperature"]), tuple(token_ids))


@dataclass
class Strike:
    """A fault that met a session: when, and the longest pause between tokens after it.

    Pauses count that began within `_AFTERMATH_SECONDS`; `over` = a token came after these.
    """

    kind: str
    at: float
    pause: float = 0.0
    over: bool = False
    _last: float = 0.0

    def hear(self, now: float) -> None:
        """A token came."""
        last = max(self._last, self.at)
        if last - self.at <= _AFTERMATH_SECONDS:
            self.pause = max(self.pause, now - last)
        self._last = now
        self.over = now - self.at > _AFTERMATH_SECONDS


@dataclass
class Transcript:
    """Tokens in the order they came, from an output offset on.

    A gap, or a token that comes twice, is noted in `faults`.
    """

    start: int = 0
    token_ids: list[int] = field(default_factory=list)
    text: str | None = None
    finish_reason: str = ""
    verifier: str = ""
    drafter: str = ""
    verifiers: set[str] = field(default_factory=set)
    drafters: set[str] = field(default_factory=set)
    drafted: int = 0
    accepted: int = 0
    heard_at: float = 0.0
    strikes: list[Strike] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def next(self) -> int:
        """The output offset of the token that comes next."""
        return self.start + len(self.token_ids)

    @property
    def complete(self) -> bool:
        """Whether the end has come."""
        return self.text is not None

    def absorb(self, event: Event) -> None:
        """Note an event."""
        if isinstance(event, Chunk):
            self._absorb_chunk(event)
        elif isinstance(event, Complete):
            self.text, self.finish_reason = event.text, str(event.finish_reason)

    def _absorb_chunk(self, chunk: Chunk) -> None:
        if chunk.offset != self.next:
            kind = "lost" if chunk.offset > self.next else "doubled"
            self.faults.append(f"tokens {kind}: {self.next} was next, {chunk.offset} came")
        self.token_ids += chunk.token_ids
        self._note_time()
        for stats in chunk.rounds:
            self.verifier = stats.verifier or self.verifier
            self.drafter = stats.drafter or self.drafter
            self.verifiers |= {stats.verifier} - {""}
            self.drafters |= {stats.drafter} - {""}
            self.drafted += stats.draft_tokens
            self.accepted += stats.accepted_tokens

    def strike(self, kind: str) -> Strike:
        """Note a fault that meets the session now."""
        struck = Strike(kind, time.monotonic())
        self.strikes.append(struck)
        return struck

    def _note_time(self) -> None:
        self.heard_at = time.monotonic()
        for strike in self.strikes:
            strike.hear(self.heard_at)
        self.strikes = [strike for strike in self.strikes if not strike.over]

    def differences(self, whole: Transcript) -> list[str]:
        """How this departs from the undisturbed session."""
        found = list(self.faults)
        expected = whole.token_ids[self.start :]
        if self.token_ids != expected[: len(self.token_ids)]:
            pairs = zip(self.token_ids, expected, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(expected))
            found.append(f"tokens changed from offset {self.start + at} on")
        elif self.complete and len(self.token_ids) != len(expected):
            found.append(f"{len(self.token_ids)} tokens instead of {len(expected)}")
        if self.complete and self.text != whole.text:
            found.append("another text at the end")
        return found
