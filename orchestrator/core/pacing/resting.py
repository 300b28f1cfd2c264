"""Turning the drafter off while it makes the session slower, and trying again."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.core.pacing.costs import RoundCosts
from orchestrator.core.pacing.levels import Levels
from orchestrator.core.pacing.matched import Matched
from orchestrator.core.pacing.policy import Decision, FinishedRound, Policy, Send, View
from orchestrator.core.pacing.thompson import Thompson

JUDGE_AFTER = 8
FIRST_REST = 16
LONGEST_REST = 128
LONGEST_IDLE = 32
"""Longest rest of a drafter that is wrong but slows nothing down."""
PROBE_ROUNDS = 3
HOPELESS = 0.05
"""A drafter with a lower acceptance rate rests."""
CALIBRATION = 4
"""Rounds with the drafter at rest that measure plain decoding."""
RECALIBRATE = 512
SETTLED = 32
"""Rounds after which tokens per millisecond are significant."""
MARGIN = 0.98
ROUGH_MARGIN = 0.85


class Rate(NamedTuple):
    """Discounted tokens and milliseconds, waits included, and hits of drafts."""

    tokens: float = 0.0
    ms: float = 0.0
    hits: float = 0.0
    tries: float = 0.0
    rounds: int = 0

    def add(self, outcome: FinishedRound, keep: float = 0.97) -> Rate:
        """The rate with one more round."""
        hit = bool(outcome.accepted_tokens) or bool(outcome.guessed)
        tried = bool(outcome.draft_tokens) or outcome.guessed is not None
        return Rate(
            keep * self.tokens + outcome.emitted_tokens,
            keep * self.ms + outcome.spent_ms,
            keep * self.hits + hit,
            keep * self.tries + tried,
            self.rounds + 1,
        )

    @property
    def per_ms(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms if self.ms else 0.0

    def scaled(self, tokens: float) -> Rate:
        """The same rates with the weight of at most so many tokens."""
        kept = min(1.0, tokens / self.tokens) if self.tokens else 1.0
        return Rate(
            kept * self.tokens, kept * self.ms, kept * self.hits, kept * self.tries, self.rounds
        )

    def hopeless(self, enough: float) -> bool:
        """Almost no draft was right, of about `enough` or more."""
        return self.tries > 0.8 * enough and self.hits < HOPELESS * self.tries


class Fallback(NamedTuple):
    """Plain decoding with the drafter off while drafts do not pay.

    They do not pay if almost none is right, or if tokens per millisecond, waits
    included, are fewer than those of plain rounds *with the drafter at rest* (it
    may share a core with the verifier). A few early rounds of rest measure the
    latter. Each rest ends in a new trial; if that fails, the next rest is twice as
    long.
    """

    inner: Policy
    drafting: Rate = Rate()
    plain: Rate = Rate()
    rest: int = FIRST_REST
    resting: int = 0
    # Drafts until the next judgement.
    trial: int = JUDGE_AFTER
    # Rounds with the drafter on since plain decoding was last measured.
    awake: int = 0
    # The round under way was sent while the drafter worked.
    settling: bool = False

    @property
    def window(self) -> int:
        """0 while resting."""
        return 0 if self.resting else self.inner.window

    def decide(self, view: View) -> Decision:
        """Plain decoding while resting, else the inner policy's decision."""
        return Send(0) if self.resting else self.inner.decide(view)

    def observe(self, outcome: FinishedRound) -> Fallback:
        """Count the round as drafted or plain, then judge."""
        if self.resting:
            return self._rested(outcome)
        after = Fallback(
            self.inner.observe(outcome),
            self.drafting.add(outcome),
            self.plain,
            self.rest,
            self.resting,
            self.trial,
            self.awake + 1,
            self.settling,
        )
        return after._judge() if after.drafting.rounds >= PROBE_ROUNDS else after

    def _rested(self, outcome: FinishedRound) -> Fallback:
        plain = self.plain if self.settling else self.plain.add(outcome)
        after = self._replace(plain=plain, resting=self.resting - 1, settling=False, awake=0)
        if after.resting or self.drafting.rounds:
            return after
        return after._replace(trial=PROBE_ROUNDS, inner=_forgetful(self.inner))

    def _judge(self) -> Fallback:
        loses = self._loses()
        if loses or self.drafting.hopeless(self.trial):
            slower = loses or self.drafting.per_ms < ROUGH_MARGIN * self.plain.per_ms
            longest = LONGEST_REST if slower else LONGEST_IDLE
            after = self._replace(drafting=Rate(), rest=min(2 * self.rest, longest))
            return after._replace(resting=self.rest, settling=True)
        passed = self.drafting.rounds >= JUDGE_AFTER and self.rest != FIRST_REST
        after = self._replace(rest=FIRST_REST) if passed else self
        due = self.awake >= (RECALIBRATE if self.plain.rounds else CALIBRATION)
        return after._replace(resting=CALIBRATION, settling=True) if due else after

    def _loses(self) -> bool:
        """Fewer tokens per millisecond than plain decoding, as expected or as measured."""
        plain = self.plain.per_ms
        if 0.0 < promise(self.inner) < MARGIN * plain:
            return True
        if self.drafting.rounds < JUDGE_AFTER:
            return False
        margin = MARGIN if self.drafting.rounds >= SETTLED else ROUGH_MARGIN
        return self.drafting.per_ms < margin * plain


Learner = Thompson | Matched | Levels
"""Policies with knowledge that one session can hand to another."""


def promise(policy: Policy) -> float:
    """Tokens per millisecond that a policy expects of itself; 0 = it does not know."""
    return policy.promise if isinstance(policy, Thompson | Levels) else 0.0


def costs_of(policy: Policy) -> RoundCosts | None:
    """What a policy learned of the times of rounds; None where it learns none."""
    inner = policy.inner if isinstance(policy, Fallback) else policy
    return inner.learned.costs if isinstance(inner, Learner) else None


def _forgetful(policy: Policy) -> Policy:
    """The policy with less weight on what it learned: the text may have changed."""
    if isinstance(policy, Learner):
        return policy.informed(policy.learned.weakened(PROBE_ROUNDS))
    return policy
