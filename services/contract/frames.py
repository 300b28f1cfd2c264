"""Messages of many sessions in columns: the steps of a verifier, drafts, and grants.

A frame crosses a process as it came: its columns are bytes, which nobody takes apart who has no
use for them. `rows` reads a frame session by session; `of_rows` makes one. Columns hold
little-endian numbers, one for each session unless said otherwise; an empty one stands for zeros,
or for what its field says. `protos/paceline/worker/v1/session.proto` has their meanings.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple

from services.contract.types import DraftTree, LogprobRow, Proposal, SparseRow

_SWAP = sys.byteorder == "big"

Numbers = Sequence[Any]


class StepEnd(IntEnum):
    """What stands behind the accepted tokens of a step.

    `RECOVERED`: the target's own token, in place of one that was rejected; `BONUS`: its own, behind
    a draft that was accepted to its end, or without a draft; `NONE`: nothing, since the last row
    judged a draft token, or no token can follow.
    """

    RECOVERED = 1
    BONUS = 2
    NONE = 3


class WaitReason(IntEnum):
    """Why a session takes no part in a step."""

    CREDIT = 1
    KV = 2
    PROMPT = 3
    FORMAT = 4
    TURN = 5
    HOLD = 6
    ENDED = 7


class DraftName(NamedTuple):
    """Which draft of a session: the opening on a drafter that made it, and its number there.

    Zeros: none, or one of the verifier's own.
    """

    opening: int = 0
    number: int = 0


NO_NAME = DraftName()


def draft_key(term: int, name: DraftName) -> int:
    """The counter that a draft's draws are keyed by: 16 bits of term, 16 of opening, 32 of number.

    Of a session no two drafts have the same one. Raises ValueError for a number beyond its bits.
    """
    if term >> 16 or name.opening >> 16 or name.number >> 32:
        raise ValueError("term and openings below 65536, numbers of drafts below 2 ** 32")
    return term << 48 | name.opening << 32 | name.number


def pack(kind: str, numbers: Iterable[Any]) -> bytes:
    """A column of numbers; `kind` is a type code of `array` (B, H, h, I, Q, f)."""
    column = array(kind, numbers)
    if _SWAP:
        column.byteswap()
    return column.tobytes()


def unpack(kind: str, column: bytes) -> Numbers:
    """The numbers of a column; raises ValueError if it is no whole number of them."""
    numbers = array(kind)
    numbers.frombytes(column)
    if _SWAP:
        numbers.byteswap()
    return numbers


# --- Steps -----------------------------------------------------------------------


class StepRow(NamedTuple):
    """What a step brought to one session.

    `position`: tokens of the output before it. `tokens`: at least one, the first `accepted` of
    which were drafted. `judged`: the draft tokens that the step judged, in the draft's order;
    `path`: which of them were accepted, empty for the first ones. `name`: of that draft.
    Milliseconds: `draft_ms` for drafting it, `age_ms` from its arrival to the step, `queue_ms` for
    which the session was ready before the step, `hold_ms` for which it was held back of these.
    """

    handle: int
    opening: int
    position: int
    tokens: tuple[int, ...]
    accepted: int = 0
    judged: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    end: StepEnd = StepEnd.BONUS
    name: DraftName = NO_NAME
    draft_ms: float = 0.0
    age_ms: float = 0.0
    queue_ms: float = 0.0
    hold_ms: float = 0.0
    sources: bytes = b""
    near_ties: int = 0
    bad_q_rows: int = 0
    logprobs: tuple[LogprobRow, ...] = ()
    top_rows: bytes = b""
    states: bytes = b""


class StepLogprobs(NamedTuple):
    """The logprobs of the tokens of one session of a frame, which `place` counts from 0."""

    place: int
    rows: tuple[LogprobRow, ...]


class StepBytes(NamedTuple):
    """Rows of target predictions, or of states, of one session of a frame."""

    place: int
    rows: bytes


@dataclass(frozen=True, slots=True)
class StepFrame:
    """What one step brought to the sessions of one link; see StepFrame in the protocol."""

    step: int
    started_ns: int = 0
    step_ms: float = 0.0
    sessions: int = 0
    rows: int = 0
    stood_out: tuple[int, ...] = ()
    handles: bytes = b""
    openings: bytes = b""
    positions: bytes = b""
    counts: bytes = b""
    tokens: bytes = b""
    accepted: bytes = b""
    drafted: bytes = b""
    draft_tokens: bytes = b""
    paths: bytes = b""
    ends: bytes = b""
    draft_openings: bytes = b""
    draft_numbers: bytes = b""
    draft_ms: bytes = b""
    age_ms: bytes = b""
    queue_ms: bytes = b""
    hold_ms: bytes = b""
    sources: bytes = b""
    near_ties: bytes = b""
    bad_q_rows: bytes = b""
    windows: bytes = b""
    logprobs: tuple[StepLogprobs, ...] = ()
    top_rows: tuple[StepBytes, ...] = ()
    states: tuple[StepBytes, ...] = ()

    @property
    def size(self) -> int:
        """How many sessions it tells of."""
        return len(self.handles) // 4

    def every_handle(self) -> Numbers:
        """Its sessions."""
        return unpack("I", self.handles)


def step_frame(
    frame: StepFrame, brought: Sequence[StepRow], windows: Sequence[int] = ()
) -> StepFrame:
    """`frame`, which has no columns yet, with what the step brought to each session.

    `windows`: how far a drafter is to be ahead of each from now on; empty = no change.
    """
    chains = all(not own.path for own in brought)
    named = any(own.name != NO_NAME for own in brought)
    accepted_all = all(not own.path and len(own.judged) == own.accepted for own in brought)
    return StepFrame(
        frame.step,
        frame.started_ns,
        frame.step_ms,
        frame.sessions,
        frame.rows,
        frame.stood_out,
        handles=pack("I", [own.handle for own in brought]),
        openings=pack("I", [own.opening for own in brought]),
        positions=pack("I", [own.position for own in brought]),
        counts=bytes([len(own.tokens) for own in brought]),
        tokens=pack("I", chain.from_iterable([own.tokens for own in brought])),
        accepted=bytes([own.accepted for own in brought]),
        drafted=pack("H", [len(own.judged) for own in brought]),
        draft_tokens=b""
        if accepted_all
        else pack("I", chain.from_iterable([own.judged for own in brought])),
        paths=b"" if chains else pack("H", chain.from_iterable(map(_path, brought))),
        ends=bytes([own.end for own in brought]),
        draft_openings=pack("I", [own.name.opening for own in brought]) if named else b"",
        draft_numbers=pack("I", [own.name.number for own in brought]) if named else b"",
        draft_ms=_some("f", [own.draft_ms for own in brought]),
        age_ms=_some("f", [own.age_ms for own in brought]),
        queue_ms=_some("f", [own.queue_ms for own in brought]),
        hold_ms=_some("f", [own.hold_ms for own in brought]),
        sources=_sources([(own.sources, len(own.judged)) for own in brought]),
        near_ties=_some("B", [min(own.near_ties, 255) for own in brought]),
        bad_q_rows=_some("B", [min(own.bad_q_rows, 255) for own in brought]),
        windows=bytes(windows),
        logprobs=tuple([StepLogprobs(i, own.logprobs) for i, own in _with(brought, "logprobs")]),
        top_rows=tuple([StepBytes(i, own.top_rows) for i, own in _with(brought, "top_rows")]),
        states=tuple([StepBytes(i, own.states) for i, own in _with(brought, "states")]),
    )


def step_rows(frame: StepFrame) -> Iterator[StepRow]:
    """What a frame tells of each session, in its order."""
    size = frame.size
    counts, drafted = frame.counts, unpack("H", frame.drafted)
    accepted = frame.accepted
    tokens = tuple(unpack("I", frame.tokens))
    judged = tuple(unpack("I", frame.draft_tokens)) if frame.draft_tokens else None
    paths = tuple(unpack("H", frame.paths)) if frame.paths else None
    logprobs = dict(frame.logprobs)
    top_rows, states = dict(frame.top_rows), dict(frame.states)
    numbers = (
        unpack("I", frame.handles),
        unpack("I", frame.openings),
        unpack("I", frame.positions),
        frame.ends,
        map(DraftName, _or_zeros("I", frame.draft_openings), _or_zeros("I", frame.draft_numbers)),
        _or_zeros("f", frame.draft_ms),
        _or_zeros("f", frame.age_ms),
        _or_zeros("f", frame.queue_ms),
        _or_zeros("f", frame.hold_ms),
        frame.near_ties or repeat(0),
        frame.bad_q_rows or repeat(0),
    )
    token = draft = place = 0
    for index, own in zip(range(size), zip(*numbers, strict=False), strict=True):
        handle, opening, position, end, name, draft_ms, age_ms, queue_ms, hold_ms, near, bad = own
        count, kept, nodes = counts[index], accepted[index], drafted[index]
        said = tokens[token : token + count]
        yield StepRow(
            handle,
            opening,
            position,
            said,
            kept,
            said[:kept] if judged is None else judged[draft : draft + nodes],
            () if paths is None else paths[place : place + kept],
            StepEnd(end),
            name,
            draft_ms,
            age_ms,
            queue_ms,
            hold_ms,
            frame.sources[draft : draft + nodes],
            near,
            bad,
            logprobs.get(index, ()),
            top_rows.get(index, b""),
            states.get(index, b""),
        )
        token, draft, place = token + count, draft + nodes, place + kept


def select_steps(frame: StepFrame, chosen: Sequence[int]) -> StepFrame:
    """The frame with some of its sessions, by ascending index."""
    if len(chosen) == frame.size:
        return frame
    brought = list(step_rows(frame))
    windows = [frame.windows[index] for index in chosen] if frame.windows else ()
    bare = StepFrame(
        frame.step, frame.started_ns, frame.step_ms, frame.sessions, frame.rows, frame.stood_out
    )
    return step_frame(bare, [brought[index] for index in chosen], windows)


def _path(row: StepRow) -> Sequence[int]:
    return row.path or range(row.accepted)


def _with(brought: Sequence[StepRow], name: str) -> list[tuple[int, StepRow]]:
    return [(index, own) for index, own in enumerate(brought) if getattr(own, name)]


# --- Drafts ----------------------------------------------------------------------


class DraftRow(NamedTuple):
    """Draft tokens of one session, behind the output whose hash is `hash`.

    `position`: the place in the output of the first token. Tokens of the same `name` that follow
    the last ones go on with the draft; another name replaces it. `reach`: of each token the chance
    that the target reaches it, falling; none = not known. `final`: nothing follows until the text
    grows. `draft_ms`: milliseconds that these tokens took.
    """

    handle: int
    name: DraftName
    position: int
    hash: int
    tree: DraftTree
    reach: tuple[float, ...] = ()
    sources: bytes = b""
    final: bool = False
    draft_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftFrame:
    """Drafts of some sessions; see DraftFrame in the protocol."""

    handles: bytes = b""
    openings: bytes = b""
    numbers: bytes = b""
    positions: bytes = b""
    hashes: bytes = b""
    counts: bytes = b""
    tokens: bytes = b""
    parents: bytes = b""
    reach: bytes = b""
    sources: bytes = b""
    kinds: bytes = b""
    draft_ms: bytes = b""
    q_rows: bytes = b""
    q_counts: bytes = b""
    q_ids: bytes = b""
    q_probs: bytes = b""

    @property
    def size(self) -> int:
        """How many sessions it tells of."""
        return len(self.handles) // 4

    def every_handle(self) -> Numbers:
        """Its sessions."""
        return unpack("I", self.handles)


_WITHOUT_REPLACEMENT, _FINAL, _PROPOSAL = 4, 8, 3


def draft_frame(drafts: Sequence[DraftRow]) -> DraftFrame:
    """A frame of drafts. Either all of a session's tokens have a `reach`, or none."""
    trees = [own.tree for own in drafts]
    chains = all(tree.parents is None for tree in trees)
    rows = [tree.q or () for tree in trees]
    every = list(chain.from_iterable(rows))
    reach = any(own.reach for own in drafts)
    return DraftFrame(
        handles=pack("I", [own.handle for own in drafts]),
        openings=pack("I", [own.name.opening for own in drafts]),
        numbers=pack("I", [own.name.number for own in drafts]),
        positions=pack("I", [own.position for own in drafts]),
        hashes=pack("Q", [own.hash for own in drafts]),
        counts=pack("H", map(len, trees)),
        tokens=pack("I", chain.from_iterable([tree.token_ids for tree in trees])),
        parents=b"" if chains else pack("h", chain.from_iterable([t.every_parent for t in trees])),
        reach=pack("f", chain.from_iterable(map(_reach, drafts))) if reach else b"",
        sources=_sources([(own.sources, len(own.tree)) for own in drafts]),
        kinds=bytes(map(_kind, drafts)),
        draft_ms=_some("f", [own.draft_ms for own in drafts]),
        q_rows=pack("H", map(len, rows)) if every else b"",
        q_counts=pack("H", [len(row.token_ids) for row in every]),
        q_ids=pack("I", chain.from_iterable([row.token_ids for row in every])),
        q_probs=pack("f", chain.from_iterable([row.probabilities for row in every])),
    )


def draft_rows(frame: DraftFrame) -> Iterator[DraftRow]:
    """The drafts of a frame, in its order."""
    size = frame.size
    counts = unpack("H", frame.counts)
    tokens = tuple(unpack("I", frame.tokens))
    parents = tuple(unpack("h", frame.parents)) if frame.parents else None
    reach = tuple(unpack("f", frame.reach)) if frame.reach else None
    laws = _laws(frame)
    numbers = zip(
        unpack("I", frame.handles),
        map(DraftName, unpack("I", frame.openings), unpack("I", frame.numbers)),
        unpack("I", frame.positions),
        unpack("Q", frame.hashes),
        frame.kinds,
        _or_zeros("f", frame.draft_ms),
        strict=False,
    )
    ends = accumulate(counts)
    for index, end, own in zip(range(size), ends, numbers, strict=True):
        handle, name, position, hashed, kind, draft_ms = own
        first = end - counts[index]
        tree = DraftTree(
            tokens[first:end],
            None if parents is None else parents[first:end],
            laws[index] if laws else None,
            _proposal(kind & _PROPOSAL),
            bool(kind & _WITHOUT_REPLACEMENT),
        )
        if parents is not None:
            tree = tree.normal()
        own_reach = () if reach is None else reach[first:end]
        yield DraftRow(
            handle,
            name,
            position,
            hashed,
            tree,
            () if own_reach and own_reach[0] < 0 else own_reach,
            frame.sources[first:end],
            bool(kind & _FINAL),
            draft_ms,
        )


def select_drafts(frame: DraftFrame, chosen: Sequence[int]) -> DraftFrame:
    """The frame with some of its sessions, by ascending index."""
    if len(chosen) == frame.size:
        return frame
    drafts = list(draft_rows(frame))
    return draft_frame([drafts[index] for index in chosen])


def _kind(draft: DraftRow) -> int:
    tree = draft.tree
    kind = tree.proposal.value | _WITHOUT_REPLACEMENT * tree.without_replacement
    return kind | _FINAL * draft.final


def _reach(draft: DraftRow) -> Iterable[float]:
    """The chances; of a draft without any, in a frame of others that have them, -1."""
    return draft.reach or repeat(-1.0, len(draft.tree))


@lru_cache(maxsize=4)
def _proposal(kind: int) -> Proposal:
    return Proposal(kind)


def _laws(frame: DraftFrame) -> list[tuple[SparseRow, ...] | None]:
    """The rows of q of each session; none at all where nothing was sampled."""
    if not frame.q_rows:
        return []
    ids, probs = tuple(unpack("I", frame.q_ids)), tuple(unpack("f", frame.q_probs))
    rows, first = [], 0
    for count in unpack("H", frame.q_counts):
        rows.append(SparseRow(ids[first : first + count], probs[first : first + count]))
        first += count
    laws: list[tuple[SparseRow, ...] | None] = []
    first = 0
    for count in unpack("H", frame.q_rows):
        laws.append(tuple(rows[first : first + count]) or None)
        first += count
    return laws


# --- Grants ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grants:
    """How long the outputs of some sessions may get; see Grants in the protocol."""

    handles: bytes
    limits: bytes


def grants(limits: Sequence[tuple[int, int]]) -> Grants:
    """Of pairs (session, limit)."""
    return Grants(pack("I", [own[0] for own in limits]), pack("I", [own[1] for own in limits]))


def granted(frame: Grants) -> Iterator[tuple[int, int]]:
    """Pairs (session, limit)."""
    return zip(unpack("I", frame.handles), unpack("I", frame.limits), strict=True)


# --- Columns ---------------------------------------------------------------------


def _some(kind: str, numbers: Sequence[Any]) -> bytes:
    """A column, or none where all are zero."""
    return pack(kind, numbers) if any(numbers) else b""


def _or_zeros(kind: str, column: bytes) -> Iterable[Any]:
    return unpack(kind, column) if column else repeat(0)


def _sources(parts: Sequence[tuple[bytes, int]]) -> bytes:
    """The sources of so many tokens each; none where nobody names any."""
    if not any(sources for sources, _ in parts):
        return b""
    return b"".join([sources or bytes(count) for sources, count in parts])
