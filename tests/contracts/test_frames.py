"""Frames: what is put into columns comes out of them, whole and in part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract.frames import (
    DraftName,
    DraftRow,
    StepEnd,
    StepFrame,
    StepRow,
    draft_frame,
    draft_rows,
    granted,
    grants,
    select_drafts,
    select_steps,
    step_frame,
    step_rows,
    unpack,
)
from services.contract.types import DraftTree, LogprobRow, Proposal, SparseRow

U32 = st.integers(0, 2**32 - 1)
TOKENS = st.lists(U32, min_size=1, max_size=9).map(tuple)
NAMES = st.builds(DraftName, U32, U32)
MS = st.floats(0, 1e6, width=32)


@st.composite
def steps(draw: st.DrawFn) -> StepRow:
    tokens = draw(TOKENS)
    end = draw(st.sampled_from(StepEnd))
    accepted = len(tokens) - (end is not StepEnd.NONE)
    behind = draw(st.lists(U32, max_size=4).map(tuple))
    judged = (*tokens[:accepted], *behind)
    path: tuple[int, ...] = ()
    if accepted and draw(st.booleans()):
        judged, path = (*behind, *tokens[:accepted]), tuple(range(len(behind), len(judged)))
        if path[0] == 0:
            path = ()
    logprobs = draw(st.sampled_from([(), (LogprobRow(-0.5, (3,), (-0.25,)),) * len(tokens)]))
    return StepRow(
        draw(U32),
        draw(U32),
        draw(U32),
        tokens,
        accepted,
        judged,
        path,
        end,
        draw(NAMES),
        draw(MS),
        draw(MS),
        draw(MS),
        draw(MS),
        bytes(draw(st.lists(st.integers(1, 11), min_size=len(judged), max_size=len(judged)))),
        draw(st.integers(0, 255)),
        draw(st.integers(0, 255)),
        logprobs,
        draw(st.binary(max_size=8)),
        draw(st.binary(max_size=8)),
    )


def normal(row: StepRow) -> StepRow:
    """A path that a chain would have is left out, unless another session has a tree."""
    plain = not row.path or row.path == tuple(range(row.accepted))
    return row._replace(path=()) if plain else row


@given(st.lists(steps(), max_size=5))
def test_steps_come_out_as_they_went_in(brought: list[StepRow]) -> None:
    frame = step_frame(StepFrame(7, 8, 9.0, 10, 11, (1, 2)), brought)
    assert [normal(row) for row in step_rows(frame)] == [normal(row) for row in brought]
    assert (frame.size, frame.step, frame.stood_out) == (len(brought), 7, (1, 2))
    assert list(frame.every_handle()) == [row.handle for row in brought]


@given(st.lists(steps(), min_size=1, max_size=5), st.data())
def test_some_sessions_of_a_step(brought: list[StepRow], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(brought) - 1), unique=True).map(sorted))
    windows = list(range(len(brought)))
    frame = select_steps(step_frame(StepFrame(7), brought, windows), places)
    assert [normal(row) for row in step_rows(frame)] == [normal(brought[i]) for i in places]
    assert list(frame.windows) == places


@st.composite
def drafts(draw: st.DrawFn) -> DraftRow:
    tokens = draw(TOKENS)
    size = len(tokens)
    tree = draw(st.booleans())
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size)) if tree else None
    proposal = draw(st.sampled_from(Proposal))
    q = None
    if proposal is Proposal.SAMPLED:
        law = st.builds(SparseRow, st.just((1, 2)), st.just((0.25, 0.75)))
        q = tuple(draw(st.lists(law, min_size=1, max_size=3)))
    chances = st.lists(st.floats(0, 1, width=32), min_size=size, max_size=size).map(tuple)
    return DraftRow(
        draw(U32),
        draw(NAMES),
        draw(U32),
        draw(st.integers(0, 2**64 - 1)),
        DraftTree(tokens, parents, q, proposal, draw(st.booleans())).normal(),
        draw(st.one_of(st.just(()), chances)),
        bytes(draw(st.lists(st.integers(1, 11), min_size=size, max_size=size))),
        draw(st.booleans()),
        draw(MS),
    )


@given(st.lists(drafts(), max_size=5))
def test_drafts_come_out_as_they_went_in(own: list[DraftRow]) -> None:
    frame = draft_frame(own)
    assert list(draft_rows(frame)) == own
    assert frame.size == len(own)


@given(st.lists(drafts(), min_size=1, max_size=5), st.data())
def test_some_drafts_of_a_frame(own: list[DraftRow], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(own) - 1), unique=True).map(sorted))
    frame = select_drafts(draft_frame(own), places)
    assert list(draft_rows(frame)) == [own[i] for i in places]


def test_limits_come_out_as_they_went_in() -> None:
    assert list(granted(grants([(1, 54), (2**32 - 1, 0)]))) == [(1, 54), (2**32 - 1, 0)]


def test_a_column_of_broken_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        unpack("I", b"12345")
