"""Hypothesis strategies for what travels on the links of protocol 2."""

from hypothesis import strategies as st

from services.contract import types as t
from services.contract import worker_messages as w
from services.contract.frames import (
    DraftName,
    StepFrame,
    WaitReason,
    draft_frame,
    grants,
    pack,
    step_frame,
)
from tests.contracts.test_frames import drafts, steps
from tests.services.wire_strategies import logprob_rows, record, u32

openings = st.integers(1, 2**32 - 1)
named = {"session_id": st.text("abc-", min_size=1, max_size=9), "opening": openings}


@st.composite
def step_frames(draw):
    rows = draw(st.lists(steps(), max_size=5, unique_by=lambda own: own.handle))
    rows = [own._replace(near_ties=min(own.near_ties, len(own.tokens))) for own in rows]
    windows = draw(st.sampled_from([(), [own.handle % 9 for own in rows]]))
    bare = draw(
        record(
            StepFrame, **dict.fromkeys(_COLUMNS, st.just(b"")), **dict.fromkeys(_RARE, st.just(()))
        )
    )
    return step_frame(bare, rows, windows)


_RARE = ("logprobs", "top_rows", "states")
_COLUMNS = [name for name, kind in StepFrame.__annotations__.items() if kind == "bytes"]


def _sound(own):
    """With an opening, and no more rows of q than tokens."""
    q = own.tree.q and own.tree.q[: len(own.tree)]
    tree = t.DraftTree(own.tree.token_ids, own.tree.parents, q, *_drawn(own.tree))
    return own._replace(tree=tree, name=DraftName(own.name.opening or 1, own.name.number))


def _drawn(tree):
    return tree.proposal, tree.without_replacement


draft_frames = st.lists(drafts().map(_sound), max_size=5).map(draft_frame)
limits = st.lists(st.tuples(u32, u32), max_size=5).map(grants)
waiting = st.lists(st.tuples(u32, st.sampled_from(WaitReason)), max_size=5).map(
    lambda pairs: w.Waiting(pack("I", [own[0] for own in pairs]), bytes(own[1] for own in pairs))
)
priorities = st.integers(-(2**31), 2**31 - 1)
both = record(w.EndSession) | record(w.SetWindow)
worker = st.one_of(
    record(w.SessionStarted, **named),
    record(w.SessionGone, **named),
    record(t.Progress),
    record(t.Draining),
)
states = record(w.TextStates, **named)
scores = record(w.PromptScores, **named, rows=st.lists(logprob_rows(), max_size=3).map(tuple))
verifier_commands = st.one_of(
    record(w.StartVerify, **named, priority=priorities),
    both,
    record(w.SetDraftedFor),
    limits,
    draft_frames,
)
verifier_events = st.one_of(worker, states, scores, waiting, step_frames())
drafter_commands = st.one_of(record(w.StartDraft, **named), both, states, step_frames())
drafter_events = st.one_of(worker, draft_frames)
