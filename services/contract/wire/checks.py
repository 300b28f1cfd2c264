"""What makes the columns of a frame sound: as long as they should be, and of what can be.

Lengths and sums tell most of it; loops over sessions are left to C. Each complaint names the
column that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import ge, gt, sub
from struct import pack
from typing import Any

from services.contract.errors import ProtocolError
from services.contract.frames import DraftFrame, Grants, StepEnd, StepFrame, unpack
from services.contract.types import Proposal
from services.contract.wire.records import LONGEST_MS, require_ms
from services.contract.worker_messages import Waiting

MOST_SESSIONS = 65_536
"""Sessions of one frame, at most."""
MOST_REASONS = 64
"""Numbers in `stood_out`, at most."""

Column = tuple[str, int, bool]
"""A name, the bytes of a number, and whether the column may be empty."""

_STEP: tuple[Column, ...] = (
    ("openings", 4, False),
    ("positions", 4, False),
    ("counts", 1, False),
    ("accepted", 1, False),
    ("drafted", 2, False),
    ("ends", 1, False),
    ("draft_openings", 4, True),
    ("draft_numbers", 4, True),
    ("draft_ms", 4, True),
    ("age_ms", 4, True),
    ("queue_ms", 4, True),
    ("hold_ms", 4, True),
    ("near_ties", 1, True),
    ("bad_q_rows", 1, True),
    ("windows", 1, True),
)
_SAID: tuple[Column, ...] = (("tokens", 4, False),)
_JUDGED: tuple[Column, ...] = (("draft_tokens", 4, True), ("sources", 1, True))
_ACCEPTED: tuple[Column, ...] = (("paths", 2, True),)

_DRAFT: tuple[Column, ...] = (
    ("openings", 4, False),
    ("numbers", 4, False),
    ("positions", 4, False),
    ("hashes", 8, False),
    ("counts", 2, False),
    ("kinds", 1, False),
    ("draft_ms", 4, True),
    ("q_rows", 2, True),
)
_DRAFTED: tuple[Column, ...] = (
    ("tokens", 4, False),
    ("parents", 2, True),
    ("reach", 4, True),
    ("sources", 1, True),
)
_LAWS: tuple[Column, ...] = (("q_counts", 2, False),)
_LAW: tuple[Column, ...] = (("q_ids", 4, False), ("q_probs", 4, False))

_ENDS = bytes(StepEnd)
# One token of the target's own behind the accepted ones, or none.
_ENDINGS = {(1, StepEnd.RECOVERED), (1, StepEnd.BONUS), (0, StepEnd.NONE)}
_PROPOSAL = 3
_KINDS = bytes(kind for kind in range(16) if kind & _PROPOSAL)


def _bits(value: float) -> int:
    """Floats that are not negative are in the order of their bits; all others' are above."""
    return int.from_bytes(pack(">f", value))


_LONGEST = _bits(LONGEST_MS)
_CERTAIN = _bits(1.01)
"""Chances are products of rounded numbers."""
_NO_REACH = _bits(-1.0)


def check_step(frame: StepFrame) -> None:
    """Raise ProtocolError unless the columns of a step go together."""
    _require(frame, _STEP, _sessions(frame, frame.handles))
    counts, accepted, drafted = frame.counts, frame.accepted, unpack("H", frame.drafted)
    nodes, kept = sum(drafted), sum(accepted)
    _require(frame, _SAID, sum(counts))
    _require(frame, _JUDGED, nodes)
    _require(frame, _ACCEPTED, kept)
    _unless(
        len({*frame.every_handle()}) == frame.size, frame, "handles", "a session is there twice"
    )
    _unless(0 not in counts, frame, "counts", "a step brings no token")
    owns = {*map(sub, counts, accepted)}
    _unless(owns <= {0, 1}, frame, "accepted", "not all tokens of a step, or all but one")
    _unless(not frame.ends.translate(None, _ENDS), frame, "ends", "one that is not known")
    ends = {*zip(map(sub, counts, accepted), frame.ends, strict=True)}
    _unless(ends <= _ENDINGS, frame, "ends", "one that does not go with the accepted tokens")
    _unless(not any(map(gt, accepted, drafted)), frame, "accepted", "more than were drafted")
    _check_judged(frame, drafted, all_kept=nodes == kept)
    _check_step_numbers(frame)


def _check_judged(frame: StepFrame, drafted: Sequence[int], *, all_kept: bool) -> None:
    """The accepted tokens are those of the judged draft at its path."""
    if frame.draft_tokens:
        if frame.paths:
            _check_paths(frame, drafted)
        else:
            _check_chains(frame, drafted)
        return
    _unless(all_kept, frame, "draft_tokens", "empty, though not all were accepted")
    _unless(not frame.paths, frame, "paths", "there are none without draft_tokens")


def _check_chains(frame: StepFrame, drafted: Sequence[int]) -> None:
    tokens, judged = frame.tokens, frame.draft_tokens
    said = drawn = 0
    for count, kept, nodes in zip(frame.counts, frame.accepted, drafted, strict=True):
        if tokens[said : said + 4 * kept] != judged[drawn : drawn + 4 * kept]:
            raise _wrong(frame, "draft_tokens", "those accepted are not those said")
        said, drawn = said + 4 * count, drawn + 4 * nodes


def _check_paths(frame: StepFrame, drafted: Sequence[int]) -> None:
    tokens, judged = unpack("I", frame.tokens), unpack("I", frame.draft_tokens)
    every = unpack("H", frame.paths)
    said = drawn = taken = 0
    for count, kept, nodes in zip(frame.counts, frame.accepted, drafted, strict=True):
        path = every[taken : taken + kept]
        if any(map(ge, path, path[1:])) or (kept and path[-1] >= nodes):
            raise _wrong(frame, "paths", "no path of the judged tokens")
        if [judged[drawn + place] for place in path] != list(tokens[said : said + kept]):
            raise _wrong(frame, "paths", "those accepted are not those said")
        said, drawn, taken = said + count, drawn + nodes, taken + kept


def _check_step_numbers(frame: StepFrame) -> None:
    require_ms(frame.step_ms, "StepFrame.step_ms")
    _durations(frame, "draft_ms", "age_ms", "queue_ms", "hold_ms")
    more = frame.near_ties and any(map(gt, frame.near_ties, frame.counts))
    _unless(not more, frame, "near_ties", "more than tokens")
    named = len(frame.draft_openings) == len(frame.draft_numbers)
    _unless(named, frame, "draft_numbers", "they come with draft_openings")
    _unless(len(frame.stood_out) <= MOST_REASONS, frame, "stood_out", "too many reasons")


def check_places(frame: StepFrame, column: str, places: Sequence[int]) -> None:
    """Rare parts are of sessions of the frame, in their order, each once."""
    rising = not any(map(ge, places, places[1:]))
    _unless(rising, frame, column, "a session is there twice, or out of order")
    _unless(not places or places[-1] < frame.size, frame, column, "of no session of the frame")


def check_draft(frame: DraftFrame) -> None:
    """Raise ProtocolError unless the columns of drafts go together."""
    _require(frame, _DRAFT, _sessions(frame, frame.handles))
    counts = unpack("H", frame.counts)
    _require(frame, _DRAFTED, sum(counts))
    _unless(0 not in unpack("I", frame.openings), frame, "openings", "they begin with 1")
    _unless(not frame.kinds.translate(None, _KINDS), frame, "kinds", "one that is not known")
    if frame.parents:
        _check_parents(frame, counts)
    if frame.reach:
        _check_reach(frame)
    _durations(frame, "draft_ms")
    _check_laws(frame, counts)


def _check_parents(frame: DraftFrame, counts: Sequence[int]) -> None:
    parents = unpack("h", frame.parents)
    own = chain.from_iterable(map(range, counts))
    sound = min(parents) >= -1 and not any(map(ge, parents, own))
    _unless(sound, frame, "parents", "one that is not before its child")


def _check_reach(frame: DraftFrame) -> None:
    bits = unpack("I", frame.reach)
    sound = max(bits) <= _CERTAIN or all(own <= _CERTAIN or own == _NO_REACH for own in {*bits})
    _unless(sound, frame, "reach", "one that is no chance")


def _check_laws(frame: DraftFrame, counts: Sequence[int]) -> None:
    rows = unpack("H", frame.q_rows)
    _require(frame, _LAWS, sum(rows))
    _require(frame, _LAW, sum(unpack("H", frame.q_counts)))
    _unless(not any(map(gt, rows, counts)), frame, "q_rows", "more than tokens")
    drawn = [kind & _PROPOSAL == Proposal.SAMPLED.value for kind in frame.kinds] if rows else ()
    _unless(not any(map(gt, map(bool, rows), drawn)), frame, "q_rows", "of what was not sampled")


def check_grants(frame: Grants) -> None:
    """Raise ProtocolError unless each session has its limit."""
    _require(frame, (("limits", 4, False),), _sessions(frame, frame.handles))


def check_waiting(waiting: Waiting) -> None:
    """Raise ProtocolError unless each session has a reason."""
    _require(waiting, (("reasons", 1, False),), _sessions(waiting, waiting.handles))


def _sessions(frame: Any, handles: bytes) -> int:
    size, rest = divmod(len(handles), 4)
    _unless(not rest, frame, "handles", f"{len(handles)} bytes are no numbers of 4")
    _unless(size <= MOST_SESSIONS, frame, "handles", f"{size} sessions; at most {MOST_SESSIONS}")
    return size


def _require(frame: Any, columns: Iterable[Column], count: int) -> None:
    """Each of the columns has `count` numbers, or none if it may be empty."""
    for name, width, may_be_empty in columns:
        size = len(getattr(frame, name))
        if size != width * count and (size or not may_be_empty):
            raise _wrong(frame, name, f"{size} bytes for {count} numbers of {width}")


def _durations(frame: Any, *columns: str) -> None:
    """None is negative, endless, or no number."""
    for name in columns:
        if column := getattr(frame, name):
            sound = max(unpack("I", column)) < _LONGEST
            _unless(sound, frame, name, "one that is no duration")


def _unless(sound: bool, frame: Any, column: str, complaint: str) -> None:
    if not sound:
        raise _wrong(frame, column, complaint)


def _wrong(frame: Any, column: str, complaint: str) -> ProtocolError:
    return ProtocolError(f"{type(frame).__name__}.{column}: {complaint}")
