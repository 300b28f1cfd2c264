"""What a session has emitted, for any number of readers at their own pace.

A reader holds an index, never a queue: a slow one stalls only itself, and all of
them together cost no more memory than the output itself.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from enum import Enum
from itertools import chain, islice, takewhile
from typing import NamedTuple

from orchestrator.core.events import Ending, RoundRecord
from services.common.errors import DataLoss, OffsetOutOfRange, PacelineError
from services.common.types import LogprobRow, Origin

# Deliveries in one message to a reader that is behind: a message costs more than its tokens.
MOST_JOINED = 64


class Delivery(NamedTuple):
    """Tokens that were emitted together; one piece of text for each.

    `logprobs` and `origins` are empty for tokens that another owner committed.
    """

    offset: int
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    logprobs: tuple[LogprobRow, ...] = ()
    origins: tuple[Origin, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()

    @property
    def told(self) -> tuple[bool, bool]:
        """What is known of the tokens beside their text."""
        return bool(self.logprobs), bool(self.origins)

    def since(self, offset: int) -> Delivery:
        """The part from an output offset on, which must lie inside."""
        cut = max(0, offset - self.offset)
        if cut == 0:
            return self
        return self._replace(
            offset=offset,
            token_ids=self.token_ids[cut:],
            pieces=self.pieces[cut:],
            logprobs=self.logprobs[cut:],
            origins=self.origins[cut:],
        )


def join(deliveries: Sequence[Delivery]) -> Delivery:
    """One delivery of several that follow each other and tell the same of their tokens."""
    if len(deliveries) == 1:
        return deliveries[0]
    return Delivery(
        deliveries[0].offset,
        tuple(chain.from_iterable(one.token_ids for one in deliveries)),
        tuple(chain.from_iterable(one.pieces for one in deliveries)),
        tuple(chain.from_iterable(one.logprobs for one in deliveries)),
        tuple(chain.from_iterable(one.origins for one in deliveries)),
        tuple(chain.from_iterable(one.rounds for one in deliveries)),
    )


class Beyond(Enum):
    """What it means that a reader is ahead of the output.

    `NOT_YET`: nobody can be. `AGAIN`: an earlier owner emitted more than was stored, and
    the same tokens come again. `LOST`: other tokens would come in their place.
    """

    NOT_YET = "not yet"
    AGAIN = "again"
    LOST = "lost"


class Output:
    """Everything one session has emitted, and how it ended."""

    def __init__(self, beyond: Beyond = Beyond.NOT_YET) -> None:
        self._beyond = beyond
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

        Raises OffsetOutOfRange or DataLoss beyond the output so far, unless it comes
        again, and the error that ended it.
        """
        if offset > self.length and self._beyond is not Beyond.AGAIN:
            raise self._ahead(offset)
        index = max(0, bisect_right(self._starts, offset) - 1)
        while True:
            while index < len(self._deliveries):
                waiting = self._alike(index)
                index += len(waiting)
                delivery = join(waiting).since(offset)
                if delivery.token_ids:
                    yield delivery
            if self.error is not None:
                raise self.error
            if self.ending is not None and offset <= self.length:
                return
            if self.ending is not None:
                raise self._ahead(offset)
            await self._changed.wait()

    def _ahead(self, offset: int) -> PacelineError:
        if self._beyond is Beyond.LOST:
            return DataLoss(f"offset: {offset} lies beyond the {self.length} tokens that were kept")
        return OffsetOutOfRange(f"offset: {offset} lies beyond the {self.length} tokens so far")

    def _alike(self, index: int) -> list[Delivery]:
        """What waits from an index on, as much as goes into one message."""
        told = self._deliveries[index].told
        waiting = islice(self._deliveries, index, index + MOST_JOINED)
        return list(takewhile(lambda delivery: delivery.told == told, waiting))

    def _notify(self) -> None:
        """Wake every reader; each then sees for itself what is new."""
        self._changed.set()
        self._changed = asyncio.Event()
