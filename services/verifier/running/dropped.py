"""What became of draft tokens that came to a verifier and were never verified; counted, no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from services.contract.frames import DraftName, DraftRow, StepRow
from services.runtime.step_records import Dropped
from services.verifier.running.mailbox import Mailbox
from services.verifier.running.output import Output


class DroppedDrafts:
    """Looks at mailboxes as they change."""

    def __init__(self) -> None:
        self._counts: Counter[Dropped] = Counter()

    def put(self, box: Mailbox, draft: DraftRow, output: Output, now: float) -> None:
        """Give a mailbox what a drafter sent."""
        held, name, came = len(box), box.name, len(draft.tree)
        if not box.put(draft, output, now):
            self._counts[Dropped.LATE] += came
        elif box.name != name:
            self._counts[Dropped.REPLACED] += held
            self._counts[Dropped.PASSED] += came - len(box)

    def followed(self, held: int, name: DraftName, row: StepRow, box: Mailbox) -> None:
        """A mailbox that held so many tokens under a name has followed what a step brought."""
        judged = len(row.judged) if row.name == name else 0
        if (gone := held - len(box) - judged) > 0:
            self._counts[Dropped.PASSED if len(box) else Dropped.DEPARTED] += gone

    def closed(self, box: Mailbox) -> None:
        """The session of a mailbox is gone."""
        self._counts[Dropped.ENDED] += len(box)

    def since_last(self) -> Mapping[Dropped, int]:
        """What was counted since this was asked last."""
        counts, self._counts = self._counts, Counter()
        return counts
