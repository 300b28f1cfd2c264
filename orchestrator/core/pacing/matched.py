"""Drafting and verifying in step with each other (PEARL)."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core.pacing.learned import Learned
from orchestrator.core.pacing.policy import Decision, FinishedRound, Send, View, patience, wait_for

FIRST_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Matched:
    """Blocks of t_verify / t_draft tokens, so that both sides end together.

    The schedule of PEARL (Liu et al. 2024, 2408.11850, sections 3.1 and 3.2). After a
    rejection (*pre-verify*) the verifier does not wait: it takes the text as it is, while
    a block is drafted, whose first token is then compared with the target's own. Under
    rejection sampling that would be a fresh draw, so the session waits for the first token
    and sends it alone. As long as blocks are accepted (*post-verify*), each is verified
    while the next one is drafted.
    """

    most: int
    learned: Learned = field(default_factory=Learned)

    @property
    def length(self) -> int:
        """Draft tokens that take as long as a step of the verifier."""
        learned = self.learned
        if not learned.draft_ms or not learned.costs.known:
            return min(FIRST_LENGTH, self.most)
        return max(1, min(self.most, round(learned.costs.round_ms(0) / learned.draft_ms)))

    @property
    def window(self) -> int:
        """A block under way, the next one, and a token of the target's own between."""
        return min(self.most, 2 * self.length + 1)

    def decide(self, view: View) -> Decision:
        """Pre-verify with nothing (by rejection, one token) there, else a matched block."""
        if not view.drafted and self.learned.exact:
            return Send(0)
        wanted = min(self.length if view.drafted else 1, view.room)
        if view.drafted >= wanted or not view.drafting:
            return Send(min(view.drafted, wanted))
        wait = wait_for(view, patience(wanted * self.learned.draft_ms))
        return wait or Send(min(view.drafted, wanted))

    def observe(self, outcome: FinishedRound) -> Matched:
        """Learn what a draft token and a step take."""
        return self.informed(self.learned.add(outcome))

    def informed(self, learned: Learned) -> Matched:
        """The policy with this knowledge instead of its own."""
        return Matched(self.most, learned)
