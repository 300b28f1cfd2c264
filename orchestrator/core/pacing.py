"""When to send a block to the verifier, and how many draft tokens it holds.

Pure: a policy sees counts, clocks and past outcomes, never a token that was not
sent (what may decide about a drawn token is part of losslessness). Policies are
values; `observe` returns the next one.

- `Eager` (AMUSD, McDanel 2024): whatever is there, as soon as the verifier is free.
- `Fixed` (Leviathan et al. 2023): synchronous speculative decoding, k tokens a
  round, the drafter idle while the verifier works. The baseline.

Both rest under a `Fallback`: k = 0 when drafts keep failing to pay, judged by the
measured tokens per millisecond of rounds with and without a draft, and tried
again after a growing number of plain rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class View:
    """What a policy may know. Times in seconds on the driver's clock.

    `drafted` is the number of tokens (nodes of a tree) ready to be sent;
    `idle_since` is when the verifier became free for this session.
    """

    now: float
    idle_since: float
    drafted: int
    drafting: bool
    room: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a block of at most `count` draft tokens now; 0 = plain decoding."""

    count: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for more, at most until this time."""

    until: float


Decision = Send | Wait


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished round: milliseconds from sending to verdict; discarded ones are left out."""

    draft_tokens: int
    accepted_tokens: int
    emitted_tokens: int
    round_ms: float
    draft_ms: float


class Policy(Protocol):
    """A pacing policy."""

    @property
    def window(self) -> int:
        """Most tokens the drafter may be ahead; 0 = it should rest."""

    def decide(self, view: View) -> Decision:
        """Send now, or wait."""

    def observe(self, outcome: Outcome) -> Policy:
        """The policy after a round."""


def _blend(mean: float, value: float, weight: float = 0.2) -> float:
    return value if mean == 0.0 else mean + weight * (value - mean)


FIRST_PATIENCE = 0.05
HOP_ALLOWANCE = 0.005


@dataclass(frozen=True, slots=True)
class Eager:
    """Whatever is there, as soon as the verifier is free (AMUSD).

    With nothing there it waits for one token, but no longer than half a plain
    round takes: a round without a draft is worth one token, too.
    """

    window: int
    draft_ms: float = 0.0
    round_ms: float = 0.0

    def decide(self, view: View) -> Decision:
        """Send all there is; wait a moment for a first token."""
        if view.drafted or not view.drafting or view.room == 0:
            return Send(min(view.drafted, view.room))
        until = view.idle_since + self._patience()
        return Send(0) if view.now >= until else Wait(until)

    def _patience(self) -> float:
        if self.round_ms == 0.0 or self.draft_ms == 0.0:
            return FIRST_PATIENCE
        return min(HOP_ALLOWANCE + 2e-3 * self.draft_ms, 0.5e-3 * self.round_ms)

    def observe(self, outcome: Outcome) -> Eager:
        """Learn how long a drafted token and a round take."""
        learned = replace(self, round_ms=_blend(self.round_ms, outcome.round_ms))
        if outcome.draft_tokens and outcome.draft_ms:
            per_token = outcome.draft_ms / outcome.draft_tokens
            return replace(learned, draft_ms=_blend(self.draft_ms, per_token))
        return learned


@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly `window` tokens a round, one side at a time (speculative decoding).

    `patience` seconds without them, and what is there is sent.
    """

    window: int
    patience: float = 1.0

    def decide(self, view: View) -> Decision:
        """Send when the block is full or cannot become fuller."""
        wanted = min(self.window, view.room)
        if view.drafted >= wanted or not view.drafting:
            return Send(min(view.drafted, wanted))
        until = view.idle_since + self.patience
        return Send(min(view.drafted, wanted)) if view.now >= until else Wait(until)

    def observe(self, outcome: Outcome) -> Fixed:  # noqa: ARG002 - nothing to learn
        """Nothing is learned."""
        return self


JUDGE_AFTER = 8
FIRST_REST = 16
LONGEST_REST = 256
PROBE_ROUNDS = 4
HOPELESS = 0.05


@dataclass(frozen=True, slots=True)
class Rate:
    """Discounted tokens, accepted tokens and milliseconds over the last rounds."""

    tokens: float = 0.0
    accepted: float = 0.0
    ms: float = 0.0
    rounds: int = 0

    def add(self, outcome: Outcome, discount: float = 0.9) -> Rate:
        """The rate with one more round."""
        return Rate(
            discount * self.tokens + outcome.emitted_tokens,
            discount * self.accepted + outcome.accepted_tokens,
            discount * self.ms + outcome.round_ms,
            self.rounds + 1,
        )

    @property
    def per_ms(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms if self.ms else 0.0

    @property
    def hopeless(self) -> bool:
        """Almost nothing of the drafts was accepted."""
        return self.accepted < HOPELESS * self.tokens


@dataclass(frozen=True, slots=True)
class Fallback:
    """k = 0 while drafts do not pay, with a new try after `rest` plain rounds."""

    inner: Policy
    drafted: Rate = field(default_factory=Rate)
    plain: Rate = field(default_factory=Rate)
    rest: int = FIRST_REST
    resting: int = 0
    trial: int = JUDGE_AFTER

    @property
    def window(self) -> int:
        """0 while resting."""
        return 0 if self.resting else self.inner.window

    def decide(self, view: View) -> Decision:
        """Plain decoding while resting, else what the inner policy says."""
        return Send(0) if self.resting else self.inner.decide(view)

    def observe(self, outcome: Outcome) -> Fallback:
        """Count the round where it belongs, then judge."""
        inner = self.inner.observe(outcome)
        if outcome.draft_tokens:
            after = replace(
                self, inner=inner, drafted=self.drafted.add(outcome), trial=self.trial - 1
            )
            return after._judge()
        resting = max(0, self.resting - 1)
        woken = self.resting == 1
        return replace(
            self,
            inner=inner,
            plain=self.plain.add(outcome),
            resting=resting,
            trial=PROBE_ROUNDS if woken else self.trial,
            drafted=Rate() if woken else self.drafted,
        )

    def _judge(self) -> Fallback:
        if self.trial > 0:
            return self
        if self._pays():
            return replace(self, rest=FIRST_REST)
        return replace(self, resting=self.rest, rest=min(2 * self.rest, LONGEST_REST))

    def _pays(self) -> bool:
        if self.drafted.hopeless:
            return False
        return self.plain.rounds == 0 or self.drafted.per_ms >= self.plain.per_ms


def make_policy(name: str, window: int, *, fallback: bool = True) -> Policy:
    """The policy of a name. `window` is the most tokens a drafter may be ahead.

    Raises ValueError for an unknown name.
    """
    match name:
        case "eager":
            policy: Policy = Eager(window)
        case "fixed":
            policy = Fixed(window)
        case _:
            raise ValueError(f"unknown pacing {name!r}; known are {', '.join(POLICIES)}")
    return Fallback(policy) if fallback else policy


POLICIES = ("eager", "fixed")
