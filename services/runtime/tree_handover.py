"""What a verifier and a drafter in one process hand to each other, between two steps.

The verifier leaves each verdict as it is decided. The drafter drafts on it, and leaves its tree
for the session's next block at the verifier. That block was sent with an `Allowance` while the
step before ran, so that a round with a draft waits for no round trip.

Session ids of two orchestrators may be the same, and a tree may be of a text that was rolled
back. Allowances exist only where drafts are matched exactly, so that costs speed alone; a tree
is skipped unless the text has its length and last token.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from services.contract.states import NO_STATES, StateRows
from services.contract.types import Allowance, Draft, TakenDraft, Verdict
from services.scheduling.tree_budget import believed, worth_most

MOST_STATE_BYTES = 64 << 20
"""States that wait for a drafter, of all sessions."""


class _Left(NamedTuple):
    """A draft behind a text (prompt and output) of so many tokens, the last of which is `last`."""

    draft: Draft
    length: int
    last: int


class Handover:
    """Between a verifier and a drafter whose steps take turns in one thread."""

    def __init__(self) -> None:
        self.verdicts: deque[Verdict] = deque()
        """The decided verdicts; the drafter takes them after each step."""
        self.states = StateExchange()
        self._expected: Counter[str] = Counter()
        self._left: dict[str, _Left] = {}

    def expect(self, session: str) -> None:
        """One more block of this session waits for a draft."""
        self._expected[session] += 1

    def leave(self, draft: Draft, text: Sequence[int]) -> bool:
        """Leave a draft behind a text; True: only a block at the verifier waits for it."""
        if draft.reach:
            self._left[draft.session] = _Left(draft, len(text), text[-1])
        return self._expected[draft.session] > 0

    def take(
        self, session: str, text: Sequence[int], allowance: Allowance, most: int
    ) -> TakenDraft:
        """What a block that waited may have of the draft behind this text: `most` nodes at most."""
        self._expected[session] = max(0, self._expected[session] - 1)
        left = self._left.pop(session, None)
        if left is None or left.length != len(text) or left.last != text[-1]:
            return TakenDraft()
        draft = left.draft
        chances = believed(draft.reach[:most], allowance.factors)
        return _beginning(draft, worth_most(chances, allowance.prices))

    def forget(self, session: str) -> None:
        """The session ends here."""
        self._left.pop(session, None)
        del self._expected[session]
        self.states.forget(session)


class StateExchange:
    """States of the target that such a drafter needs; what has no room here is dropped."""

    def __init__(self, most_bytes: int = MOST_STATE_BYTES) -> None:
        self.needed = NO_STATES
        """What the drafter's methods need, if any do."""
        self.listening: set[str] = set()
        """The sessions that it has open with such a method."""
        self._most = most_bytes
        self._held = 0
        self._rows: dict[str, list[StateRows]] = {}

    def leave(self, session: str, rows: StateRows) -> bool:
        """Leave rows to the drafter, which may open the session only later; False: no room."""
        size = len(rows.states)
        if self._held + size > self._most:
            return False
        self._held += size
        self._rows.setdefault(session, []).append(rows)
        return True

    def take(self, session: str) -> list[StateRows]:
        """What was left of a session; rows of text that is still to come are left again."""
        rows = self._rows.pop(session, [])
        self._held -= sum(len(row.states) for row in rows)
        return rows

    def forget(self, session: str) -> None:
        """The session ends here."""
        self.take(session)


def _beginning(draft: Draft, count: int) -> TakenDraft:
    """The first `count` nodes, which come best first; time is shared evenly."""
    if not count:
        return TakenDraft()
    share = draft.draft_ms * count / len(draft.tree)
    return TakenDraft(draft.tree.first(count), draft.reach[:count], draft.sources[:count], share)
