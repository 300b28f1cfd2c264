"""What a session has emitted, for any number of readers at their own pace.

A reader holds an index, never a queue: a slow one stalls only itself, and all of
them together cost no more memory than the output itself. Logprobs are by far the
largest part of it: only those of the last tokens are kept, and a reader further
behind gets its tokens without.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import NamedTuple

from orchestrator.session.logprobs import PackedRow
from orchestrator.steering.rounds import Ending, RoundRecord
from services.contract.errors import DataLoss, OffsetOutOfRange, PacelineError
from services.contract.types import EMPTY_HASH, Origin, extend_hash
from services.runtime.news import News

# Deliveries in one message to a reader that is behind: a message costs more than its tokens.
MOST_JOINED = 64
# Tokens in one message, unless a single delivery has more.
MOST_TOGETHER = 4_096
PART = 256
# Tokens of a prompt whose logprobs are in one message.
PROMPT_PART = 1_024
# Tokens whose logprobs wait for readers that are behind.
LOGPROBS_KEPT = 4_096


class Delivery(NamedTuple):
    """Tokens that were emitted together; one piece of text for each.

    `logprobs` and `origins` are empty for tokens that another owner committed, and unless
    the request asked for them; logprobs also when they are dropped.
    """

    offset: int
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    logprobs: tuple[PackedRow, ...] = ()
    origins: tuple[Origin, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()

    @property
    def extras(self) -> tuple[bool, bool]:
        """Whether its tokens have logprobs, and origins."""
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
    """One delivery of several consecutive ones with the same extras."""
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


class Prefix(NamedTuple):
    """The first `offset` tokens of an output, which a reader has.

    `hash` is their `extend_hash`, None where the reader does not send it.
    """

    offset: int = 0
    hash: int | None = None


class Beyond(Enum):
    """What it means that a reader is ahead of the output.

    `NOT_YET`: impossible, an error of the reader. `AGAIN`: an earlier owner emitted more than
    was stored, and the same tokens come again. `LOST`: other tokens would replace them.
    """

    NOT_YET = "not yet"
    AGAIN = "again"
    LOST = "lost"


def another_text(prefix: Prefix) -> DataLoss:
    """For a reader whose tokens are not those of the output."""
    return DataLoss(
        f"prefix_hash: the first {prefix.offset} tokens of the output are not those that the "
        "reader has: the store lost them, and others came in their place"
    )


def ahead(prefix: Prefix, length: int, *, lost: bool) -> PacelineError:
    """For a reader that has more than the output will ever hold in its place."""
    if lost:
        return DataLoss(f"offset: {prefix.offset} lies beyond the {length} tokens that were kept")
    return OffsetOutOfRange(f"offset: {prefix.offset} lies beyond the {length} tokens so far")


class Output:
    """Everything one session has emitted, and how it ended."""

    def __init__(
        self,
        beyond: Beyond = Beyond.NOT_YET,
        proven: Beyond = Beyond.LOST,
        logprobs_kept: int = LOGPROBS_KEPT,
        prompt_due: int = 0,
    ) -> None:
        """`beyond` applies to readers that send no hash.

        `proven` applies to those that do: they got tokens that are gone, which come again or
        are lost. `logprobs_kept` in tokens. `prompt_due`: rows that are to come of the prompt.
        """
        self._prompt: list[PackedRow] = []
        self._prompt_due = prompt_due
        self._beyond, self._proven = beyond, proven
        self._logprobs_kept = logprobs_kept
        self._deliveries: list[Delivery] = []
        self._starts: list[int] = []
        # The hash of the output before each delivery.
        self._hashes: list[int] = []
        self._hash = EMPTY_HASH
        # The first delivery that still has logprobs, and how many there are from it on.
        self._bare = self._rows = 0
        self._news = News()
        self.length = 0
        self.followers = 0
        self.ending: Ending | None = None
        self.error: Exception | None = None

    @property
    def ended(self) -> bool:
        """Whether the output is complete, or ends here."""
        return self.ending is not None or self.error is not None

    @property
    def prompt_known(self) -> int:
        """Rows of the prompt so far, the first of which is that of its second token."""
        return len(self._prompt)

    @property
    def prompt_missing(self) -> int:
        """Rows of the prompt that are to come."""
        return self._prompt_due - len(self._prompt)

    def put_prompt(self, rows: Sequence[PackedRow]) -> None:
        """Rows that follow those of the prompt so far."""
        self._prompt += rows
        self._news.tell()

    async def prompt(self) -> AsyncIterator[tuple[int, list[PackedRow]]]:
        """The rows of the prompt, in parts, each with the index of its first token."""
        told = 0
        while True:
            while told < len(self._prompt):
                part = self._prompt[told : told + PROMPT_PART]
                yield 1 + told, part
                told += len(part)
            if not self.prompt_missing or self.ended:
                return
            await self._news.wait()

    def put(self, delivery: Delivery) -> None:
        """Append what follows the output so far."""
        if delivery.token_ids:
            self._deliveries.append(delivery)
            self._starts.append(delivery.offset)
            self._hashes.append(self._hash)
            self._hash = extend_hash(self._hash, delivery.token_ids)
            self.length = delivery.offset + len(delivery.token_ids)
            self._rows += len(delivery.logprobs)
            self._forget_logprobs()
            self._news.tell()

    def put_all(self, token_ids: Sequence[int], pieces: Sequence[str]) -> None:
        """Append what another owner emitted, in parts that make a reader's place quick to find."""
        for first in range(0, len(token_ids), PART):
            part = slice(first, first + PART)
            self.put(Delivery(first, tuple(token_ids[part]), tuple(pieces[part])))

    def _forget_logprobs(self) -> None:
        while self._rows > self._logprobs_kept:
            oldest = self._deliveries[self._bare]
            if self._rows - len(oldest.logprobs) < self._logprobs_kept:
                break
            self._rows -= len(oldest.logprobs)
            self._deliveries[self._bare] = oldest._replace(logprobs=())
            self._bare += 1

    def end(self, ending: Ending | None = None, error: Exception | None = None) -> None:
        """Nothing more will come, or not from here."""
        if not self.ended:
            self.ending, self.error = ending, error
            self._news.tell()

    def text(self) -> str:
        """All text emitted so far."""
        return "".join(piece for delivery in self._deliveries for piece in delivery.pieces)

    def agrees(self, prefix: Prefix) -> bool:
        """Whether the output begins with what the reader has."""
        if prefix.offset > self.length:
            return False
        return prefix.hash is None or prefix.hash == self._hash_at(prefix.offset)

    async def follow(self, prefix: Prefix) -> AsyncIterator[Delivery]:
        """The output after the reader's tokens, until the end.

        Raises DataLoss if the reader has another text, OffsetOutOfRange or DataLoss if it is
        ahead and its tokens do not come again, and the error that ended the output.
        """
        while not self._reaches(prefix):
            await self._news.wait()
        index = max(0, bisect_right(self._starts, prefix.offset) - 1)
        while True:
            while index < len(self._deliveries):
                waiting = self._alike(index)
                index += len(waiting)
                delivery = join(waiting).since(prefix.offset)
                if delivery.token_ids:
                    yield delivery
            if self.error is not None:
                raise self.error
            if self.ending is not None:
                return
            await self._news.wait()

    def _reaches(self, prefix: Prefix) -> bool:
        """Whether the output holds all of the reader's tokens; False while they come again."""
        if self.agrees(prefix):
            return True
        beyond = self._beyond if prefix.hash is None else self._proven
        if prefix.offset <= self.length:
            raise another_text(prefix)
        if beyond is not Beyond.AGAIN:
            raise ahead(prefix, self.length, lost=beyond is Beyond.LOST)
        if self.error is not None:
            raise self.error
        if self.ending is not None:
            raise ahead(prefix, self.length, lost=prefix.hash is not None)
        return False

    def _hash_at(self, offset: int) -> int:
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return EMPTY_HASH
        part = self._deliveries[index].token_ids[: offset - self._starts[index]]
        return extend_hash(self._hashes[index], part)

    def _alike(self, index: int) -> list[Delivery]:
        """The deliveries from an index on that fit one message."""
        first = self._deliveries[index]
        extras, end = first.extras, first.offset + MOST_TOGETHER
        waiting = [first]
        for delivery in islice(self._deliveries, index + 1, index + MOST_JOINED):
            if delivery.extras != extras or delivery.offset + len(delivery.token_ids) > end:
                break
            waiting.append(delivery)
        return waiting
