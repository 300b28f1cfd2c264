"""The drafter's bookkeeping of one session, against any order of commits and drafts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.contract.errors import InvalidRequest
from services.drafter.session import MAX_HELD_COMMITS, DraftSession
from tests.services import drafter_kit
from tests.services.drafter_kit import SAMPLED
from tests.tries import tries


def opened(**changes):
    values = {"prompt": (50, 51), "window": 8, "max_tokens": 100}
    return drafter_kit.opening(**(values | changes))


def commit(base, *tokens, epoch=1):
    return t.CommitDraft("s", epoch, base, tokens)


def chain(*tokens):
    return t.DraftTree(tokens)


def drafted(session, *tokens, **tree):
    draft = session.absorb(t.DraftTree(tokens, **tree), False, 1.0)
    assert draft is not None
    return draft


def output(session):
    return session.text[session.prompt_length :]


# --- properties over any interleaving ------------------------------------------

TOKENS = st.integers(0, 2)


def next_draft(text):
    """What the imaginary drafter proposes: a function of the whole text."""
    return t.extend_hash(t.EMPTY_HASH, text) % 3


class Imaginary:
    """A drafter with KV: it feeds what the rules say and records every token it fed."""

    def __init__(self, session):
        self.session = session
        self.kv = []

    def draft(self):
        text = self.session.text
        if not self.session.drafting:
            return None
        if self.session.room == 0:
            return self.session.absorb(t.DraftTree(), True, 0.0)
        start = min(len(self.kv), len(text) - 1)
        self.kv = self.kv[:start] + text[start:]
        return self.session.absorb(chain(next_draft(text)), False, 0.0)

    def commit(self, command):
        kept = self.session.commit(command)
        if kept is not None:
            del self.kv[kept:]

    def check(self, truth):
        session, out = self.session, output(self.session)
        assert session.text[: session.prompt_length] == [50, 51]
        assert out[: session.committed_length] == truth[: session.committed_length]
        for position in range(session.committed_length, len(out)):
            assert out[position] == next_draft([50, 51, *out[:position]])
        assert self.kv == session.text[: len(self.kv)]
        assert len(session._hashes) == len(out) + 1
        assert session._hashes[-1] == t.extend_hash(t.EMPTY_HASH, out)


@st.composite
def histories(draw):
    """A committed text, its commits as delivered (doubled, reordered), and when."""
    truth = []
    for agrees, token in draw(st.lists(st.tuples(st.booleans(), TOKENS), min_size=1, max_size=40)):
        truth.append(next_draft([50, 51, *truth]) if agrees else token)
    cuts = draw(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 3))))
    commits, base, epoch = [], 0, 1
    for size, bump, overlap in [*cuts, (len(truth), False, 0)]:
        size, overlap, epoch = min(size, len(truth) - base), min(overlap, base), epoch + bump
        tokens = tuple(truth[base - overlap : base + size])
        commits.append(t.CommitDraft("s", epoch, base - overlap, tokens))
        base += size
    random = draw(st.randoms(use_true_random=False))
    doubled = [c for c in commits for _ in range(random.choice((1, 1, 2)))]
    doubled = [c for _, c in sorted(enumerate(doubled), key=lambda ic: ic[0] + random.random() * 3)]
    return truth, doubled, [random.randint(0, 5) for _ in doubled]


@tries(400)
@given(histories(), st.integers(1, 8))
def test_the_text_is_the_committed_text_and_a_tail_drafted_from_it(history, window):
    truth, commits, drafts_between = history
    imaginary = Imaginary(DraftSession(opened(window=window)))
    committed = 0
    for command, drafts in zip(commits, drafts_between, strict=True):
        for _ in range(drafts):
            imaginary.draft()
            imaginary.check(truth)
            assert imaginary.session.tail_length <= window
        imaginary.commit(command)
        imaginary.check(truth)
        assert imaginary.session.committed_length >= committed
        committed = imaginary.session.committed_length
    assert committed == len(truth)
    assert imaginary.session.epoch == max(c.epoch for c in commits)


@tries(200)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), max_size=30))
def test_a_perfect_drafter_is_never_rolled_back(moves):
    truth = []
    while len(truth) < 200:
        truth.append(next_draft([50, 51, *truth]))
    imaginary = Imaginary(DraftSession(opened(max_tokens=200)))
    session = imaginary.session
    for drafts, size in moves:
        for _ in range(drafts):
            imaginary.draft()
        before = len(session.text)
        base = session.committed_length
        kept = session.commit(commit(base, *truth[base : base + size]))
        assert kept in (None, before)
        imaginary.check(truth)


@tries(200)
@given(histories(), st.integers(0, 4))
def test_every_turn_ends_with_exactly_one_final_draft(history, window):
    session = DraftSession(opened(window=window))
    imaginary = Imaginary(session)
    for command in history[1]:
        drafts = [imaginary.draft() for _ in range(12)]
        finals = [draft.final for draft in drafts if draft is not None]
        assert finals == ([False] * (len(finals) - 1) + [True] if finals else [])
        assert not session.drafting
        kept = session.commit(command)
        assert session.drafting == (kept is not None and window > 0)


# --- one rule at a time --------------------------------------------------------


OLD = {"epoch": 5, "committed": (1, 2, 3)}
LATE = {"epoch": 5, "committed": (1,)}
COMMITS = {
    "that agrees keeps the tail": ({}, (1, 2, 3), commit(0, 1, 2), 5, [1, 2, 3], 1),
    "that differs leaves the common prefix": ({}, (1, 2, 3), commit(0, 1, 9), 3, [1, 9], 0),
    "beyond the tail is adopted": ({}, (1,), commit(0, 1, 2, 3), 3, [1, 2, 3], 0),
    "of a higher epoch drops the tail": ({}, (1, 2, 3), commit(0, 1, 2, epoch=2), 4, [1, 2], 0),
    "without tokens drops it, too": ({"committed": (7,)}, (1, 2), commit(1, epoch=3), 3, [7], 0),
    "that is old changes nothing": (OLD, (4,), commit(1, 2, epoch=4), None, [1, 2, 3, 4], 1),
    "that is old and differs, too": (OLD, (4,), commit(0, 9, 9, epoch=4), None, [1, 2, 3, 4], 1),
    "that is late may add tokens": (LATE, (), commit(0, 1, 2, epoch=4), 3, [1, 2], 0),
}


@pytest.mark.parametrize(
    ("changes", "tail", "command", "kept", "said", "left"), COMMITS.values(), ids=COMMITS
)
def test_a_commit(changes, tail, command, kept, said, left):
    session = DraftSession(opened(**changes))
    session.absorb(chain(*tail), False, 1.0)
    assert session.commit(command) == kept
    assert (output(session), session.tail_length) == (said, left)
    assert session.epoch == max(command.epoch, changes.get("epoch", 1))


def test_a_commit_beyond_a_gap_waits_for_the_one_before_it():
    session = DraftSession(opened())
    assert session.commit(commit(2, 3, 4, epoch=2)) is None
    assert session.committed_length == 0
    session.commit(commit(0, 1, 2))
    assert (session.epoch, output(session)) == (2, [1, 2, 3, 4])


def test_too_many_commits_beyond_a_gap_are_refused():
    session = DraftSession(opened())
    for _ in range(MAX_HELD_COMMITS):
        session.commit(commit(5, 1))
    with pytest.raises(InvalidRequest, match="base_len"):
        session.commit(commit(5, 1))


def test_a_contradiction_of_committed_text_is_refused_without_naming_tokens():
    session = DraftSession(opened(committed=(1, 2)))
    with pytest.raises(InvalidRequest, match="already committed") as refused:
        session.commit(commit(1, 77, 3))
    assert "77" not in str(refused.value)


def test_a_commit_beyond_max_tokens_is_refused():
    session = DraftSession(opened(max_tokens=2))
    with pytest.raises(InvalidRequest, match="max_tokens"):
        session.commit(commit(0, 1, 2, 3))


def test_a_draft_tells_from_what_it_was_drafted():
    session = DraftSession(opened(committed=(1, 2)))
    drafted(session, 3)
    draft = drafted(session, 4, 5)
    assert (draft.epoch, draft.base_committed_len, draft.first_position) == (1, 2, 3)
    assert draft.prefix_hash == t.extend_hash(t.EMPTY_HASH, (1, 2, 3))
    assert draft.tree.token_ids == (4, 5)
    assert draft.draft_ms == 1.0


STOP = {"stop_token_ids": (9,)}
CUTS = {
    "at the window": ({"window": 2}, (1, 2, 3), (1, 2), 1),
    "at max_tokens": ({"max_tokens": 3, "committed": (1,)}, (2, 3, 4), (2, 3), 0),
    "behind a stop token": (STOP, (1, 9, 2), (1, 9), 0),
    "at no stop token before min_tokens": (STOP | {"min_tokens": 2}, (9, 9, 9, 1), (9, 9, 9), 0),
}


@pytest.mark.parametrize(("changes", "tokens", "sent", "room"), CUTS.values(), ids=CUTS)
def test_a_chain_is_cut_and_ends_the_turn(changes, tokens, sent, room):
    session = DraftSession(opened(**changes))
    draft = drafted(session, *tokens)
    assert (draft.tree.token_ids, draft.final) == (sent, True)
    assert (session.room, session.drafting) == (0, False)
    session.commit(commit(session.committed_length, sent[0]))
    assert session.room == room


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_drawn_stop_token_does_not_end_the_draft(mode):
    session = DraftSession(opened(**STOP, mode=mode))
    draft = drafted(session, 5, 9, 6)
    assert (draft.tree.token_ids, draft.final) == ((5, 9, 6), False)
    assert session.room == session.window - 3


def test_what_is_cut_of_a_chain_takes_its_laws_and_sources_along():
    rows = tuple(t.SparseRow((token,), (1.0,)) for token in (4, 5, 6))
    session = DraftSession(opened(window=2))
    draft = session.absorb(t.DraftTree((4, 5, 6), q=rows), False, 1.0, sources=bytes([1, 2, 1]))
    assert draft is not None
    assert (draft.tree.token_ids, draft.tree.q) == ((4, 5), rows[:2])
    assert draft.sources == bytes([1, 2])


def test_a_tree_leaves_the_text_alone_and_ends_the_turn():
    session = DraftSession(opened(committed=(1,)))
    assert drafted(session, 5, 6, 7, parents=(-1, -1, 0)).final
    assert output(session) == [1]
    session.commit(commit(1, 5, 7))
    assert session.drafting


def test_a_chain_that_spells_out_its_parents_is_a_chain():
    session = DraftSession(opened())
    draft = drafted(session, 5, 6, parents=(-1, 0))
    assert draft.tree.parents is None
    assert output(session) == [5, 6]


def test_nothing_proposed_and_not_final_sends_nothing():
    session = DraftSession(opened())
    assert session.absorb(t.DraftTree(), False, 0.0) is None
    assert session.drafting


def test_a_smaller_window_keeps_the_tail_and_leaves_no_room():
    session = DraftSession(opened())
    drafted(session, 1, 2, 3, 4)
    session.credit(2)
    assert output(session) == [1, 2, 3, 4]
    assert session.room == 0
