"""What a session answers: the events of a stream, and its rounds as the store keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.session.totals import SpecTotals
from orchestrator.steering.rounds import Ending, RoundRecord
from services.contract.types import LogprobRow, Origin


class Started(NamedTuple):
    """The first event of every stream; `completion`: its number among its request's.

    It comes again with `prompt_logprobs`, where they were asked for: those of `prompt_ids`, which
    stand in the prompt from `prompt_offset` on.
    """

    session_id: str
    prompt_tokens: int
    seed: int
    completion: int = 0
    prompt_offset: int = 0
    prompt_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[LogprobRow, ...] = ()


class Chunk(NamedTuple):
    """Tokens that follow output[:offset].

    `logprobs` has one entry per token, or none. So have `pieces` (what the text is made of) and
    `origins`; they and `rounds` are there only where rounds were asked for.
    """

    offset: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[LogprobRow, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    pieces: Sequence[str] = ()
    origins: tuple[Origin, ...] = ()
    completion: int = 0


class Complete(NamedTuple):
    """The last event of a stream that reached its end, with the whole text."""

    ending: Ending
    text: str
    totals: SpecTotals
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    completion: int = 0


Event = Started | Chunk | Complete


class SessionRound(NamedTuple):
    """One round of a stored session, under its `term`-th owner.

    `rejected` and `unjudged` are the texts of the draft tokens that the record names so.
    """

    term: int
    record: RoundRecord
    token_ids: tuple[int, ...]
    pieces: Sequence[str]
    origins: tuple[Origin, ...]
    rejected: tuple[str, ...]
    unjudged: tuple[str, ...]
