"""What a session has emitted, for any number of readers at their own pace.

A reader holds an index, never a queue: a slow one stalls only itself, and all of
them together cost no more memory than the output itself.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from orchestrator.core.events import Ending, RoundRecord
from services.common.errors import OffsetOutOfRange
from services.common.types import LogprobRow, Origin


@dataclass(frozen=True, slots=True)
class Delivery:
    """Tokens that were emitted together; one piece of text for each.

    `logprobs` and `origins` are empty for tokens that another owner committed.
    """

    offset: int
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    logprobs: tuple[LogprobRow, ...] = ()
    origins: tuple[Origin, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()

    def since(self, offset: int) -> Delivery:
        """The part from an output offset on, which must lie inside."""
        cut = max(0, offset - self.offset)
        if cut == 0:
            return self
        return replace(
            self,
            offset=offset,
            token_ids=self.token_ids[cut:],
            pieces=self.pieces[cut:],
            logprobs=self.logprobs[cut:],
            origins=self.origins[cut:],
        )


class Output:
    """Everything one session has emitted, and how it ended."""

    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        self._starts: list[int] = []
        self._changed = asyncio.Event()
        self.length = 0
        self.followers = 0
        self.ending: Ending | None = None
        self.error: Exception | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.ending is not None or self.error is not None

    def put(self, delivery: Delivery) -> None:
        """Append what follows the output so far."""
        if delivery.token_ids:
            self._deliveries.append(delivery)
            self._starts.append(delivery.offset)
            self.length = delivery.offset + len(delivery.token_ids)
            self._notify()

    def end(self, ending: Ending | None = None, error: Exception | None = None) -> None:
        """Nothing more will come, or not from here."""
        if not self.ended:
            self.ending, self.error = ending, error
            self._notify()

    def text(self) -> str:
        """All text emitted so far."""
        return "".join(piece for delivery in self._deliveries for piece in delivery.pieces)

    async def follow(self, offset: int) -> AsyncIterator[Delivery]:
        """What comes from an output offset on, until the end.

        Raises OffsetOutOfRange beyond the output so far, and the error that ended it.
        """
        if offset > self.length:
            raise OffsetOutOfRange(f"offset: {offset} lies beyond the {self.length} tokens so far")
        index = max(0, bisect_right(self._starts, offset) - 1)
        while True:
            while index < len(self._deliveries):
                delivery = self._deliveries[index].since(offset)
                index += 1
                if delivery.token_ids:
                    yield delivery
            if self.error is not None:
                raise self.error
            if self.ending is not None:
                return
            await self._changed.wait()

    def _notify(self) -> None:
        """Wake every reader; each then sees for itself what is new."""
        self._changed.set()
        self._changed = asyncio.Event()
