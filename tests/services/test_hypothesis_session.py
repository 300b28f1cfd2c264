"""The drafter's bookkeeping of one session, against any order of steps and drafts."""

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.contract import types as t
from services.contract.errors import InvalidRequest
from services.contract.frames import NO_NAME, DraftName, draft_key
from services.drafter.hypotheses.session import HypothesisSession, OutOfStep
from services.drafter.protocol import Proposed
from tests.services.drafter_kit import SAMPLED
from tests.services.hypothesis_kit import starting
from tests.tries import tries


def opened(**changes):
    return HypothesisSession(starting(**({"window": 8} | changes)))


def chain(*tokens, **more):
    return Proposed(t.DraftTree(tokens), **more)


def hashed(*tokens):
    return t.extend_hash(t.EMPTY_HASH, tokens)


def output(session):
    return session.text[session.prompt_length :]


def drafted(session, *tokens, **more):
    session.absorb(chain(*tokens, **more), 1.0)
    return session.taken()


# --- properties over any interleaving ------------------------------------------


@dataclass
class Reader:
    """Who reads drafts by name and hash alone, as a mailbox does, and knows all that was said."""

    said: list[int] = field(default_factory=list)
    name: DraftName = NO_NAME
    begins: int = 0
    held: list[int] = field(default_factory=list)
    final: bool = False
    seen: dict = field(default_factory=dict)

    def take(self, row):
        """A row goes on with the draft that is held, or begins another behind known text."""
        if row.name == self.name:
            assert row.position == self.begins + len(self.held)
            assert not self.final, "nothing follows what is final"
        else:
            assert row.name > self.name
            assert row.position <= len(self.said)
            self.name, self.begins, self.held = row.name, row.position, []
            self.final = False
        whole = [*self.said[: self.begins], *self.held]
        assert row.hash == hashed(*whole[: row.position])
        self.held += row.tree.token_ids
        self.final = row.final
        for place, token in enumerate(row.tree.token_ids, row.position):
            assert self.seen.setdefault((row.name, place), token) == token

    def hear(self, tokens):
        """The text has grown, so more may follow."""
        self.said += tokens
        self.final = False


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("draft"), st.lists(st.integers(0, 2), min_size=1, max_size=3)),
        st.tuples(st.just("final"), st.lists(st.integers(0, 2), max_size=2)),
        st.tuples(st.just("send"), st.none()),
        st.tuples(st.just("agree"), st.integers(1, 4)),
        st.tuples(st.just("say"), st.lists(st.integers(0, 2), min_size=1, max_size=3)),
        st.tuples(st.just("again"), st.integers(0, 4)),
        st.tuples(st.just("window"), st.integers(0, 6)),
    ),
    max_size=40,
)


@example([("final", []), ("send", None), ("again", 0), ("draft", [0]), ("send", None)], 1, False)
@tries(500)
@given(MOVES, st.integers(0, 5), st.booleans())
def test_names_and_hashes_say_which_text_a_draft_is_of(moves, window, synchronous):
    session, reader = opened(window=window, synchronous=synchronous), Reader()
    number, left = 0, 0
    for kind, what in moves:
        tail = output(session)[session.committed_length :]
        match kind:
            case "draft" | "final" if session.due:
                session.absorb(chain(*what, final=kind == "final"))
            case "send":
                before = session.tail_length
                if (row := session.taken()) is not None:
                    reader.take(row)
                    left = row.position + len(row.tree)
                    assert session.tail_length == before
                    assert row.final or not synchronous
            case "agree" if tail:
                step_of(session, reader, tail[:what])
                number += len(reader.said) > left
            case "say":
                step_of(session, reader, what)
                differs = tail[: len(what)] != what
                number += len(reader.said) > left or differs
                left = 0 if differs else left
            case "again":
                first = max(0, len(reader.said) - what)
                assert session.take(first, reader.said[first:][:2]) is None
            case "window":
                if what > session.window:
                    reader.final = False
                session.set_window(what)
        assert output(session)[: session.committed_length] == reader.said
        assert session.committed_length == len(reader.said)
        assert session.name == DraftName(1, number)


def step_of(session, reader, tokens):
    tokens = list(tokens)[: 100 - len(reader.said)]
    tail = output(session)[session.committed_length :]
    kept = session.take(len(reader.said), tokens)
    reader.hear(tokens)
    same = next((i for i, (a, b) in enumerate(zip(tail, tokens, strict=False)) if a != b), None)
    if same is None:
        same = min(len(tail), len(tokens))
    whole = same == len(tokens)
    assert kept == session.prompt_length + len(reader.said) - len(tokens) + (
        len(tail) if whole else same
    )
    assert output(session) == [*reader.said, *(tail[len(tokens) :] if whole else ())]


@tries(200)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), max_size=30))
def test_a_draft_that_is_right_keeps_its_name_and_each_token_leaves_once(moves):
    truth = [place % 7 for place in range(500)]
    session, sent = opened(max_tokens=500, window=20), []
    for tokens, said in moves:
        at = session.output_length
        session.absorb(chain(*truth[at : at + tokens]))
        if (row := session.taken()) is not None:
            sent += row.tree.token_ids
        said = min(said, session.tail_length)
        base = session.committed_length
        if said:
            session.take(base, truth[base : base + said])
    assert session.name == DraftName(1, 0)
    assert sent == truth[: session.output_length]


@tries(200)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_no_key_of_a_place_comes_again(moves):
    session = opened(mode=t.VerifyMode.STANDARD)
    drawn = set()
    for token, agrees in moves:
        if session.due:
            place = session.key, session.output_length
            assert place not in drawn
            drawn.add(place)
            session.absorb(chain(token))
        tail = output(session)[session.committed_length :]
        session.take(session.committed_length, [tail[0] if agrees and tail else 9])


# --- one rule at a time --------------------------------------------------------


def test_a_draft_says_its_name_its_place_and_the_text_before_it():
    session = opened(opening=3, output=(1, 2))
    drafted(session, 3)
    row = drafted(session, 4, 5)
    assert (row.handle, row.name, row.position) == (1, DraftName(3, 0), 3)
    assert (row.hash, row.tree.token_ids) == (hashed(1, 2, 3), (4, 5))
    assert (row.draft_ms, row.final) == (1.0, False)


STEPS = {
    "that the tail holds keeps the rest": ((1, 2, 3), (1, 2), 0, [1, 2, 3], 5),
    "that the tail holds whole keeps the name": ((1, 2, 3), (1, 2, 3), 0, [1, 2, 3], 5),
    "that differs leaves what is alike": ((1, 2, 3), (1, 9), 1, [1, 9], 3),
    "that passes the tail gives a new name": ((1,), (1, 2), 1, [1, 2], 3),
    "without a tail gives a new name": ((), (5,), 1, [5], 2),
}


@pytest.mark.parametrize(("tail", "tokens", "number", "said", "kept"), STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("mode", t.VerifyMode)
def test_a_step(tail, tokens, number, said, kept, mode):
    session = opened(mode=mode)
    session.absorb(chain(*tail))
    session.taken()
    assert session.take(0, tokens) == kept
    assert (output(session), session.name.number) == (said, number)
    assert session.tail_length == len(said) - len(tokens)


def test_tokens_that_became_text_before_they_left_are_not_sent_and_the_rest_has_another_name():
    session = opened()
    first = drafted(session, 1)
    session.absorb(chain(2, 3, 4))
    session.take(0, (1, 2))
    row = session.taken()
    assert row.name > first.name
    assert (row.position, row.hash, row.tree.token_ids) == (2, hashed(1, 2), (3, 4))


def test_a_step_that_is_known_in_part_adds_the_rest():
    session = opened(output=(1, 2))
    assert session.take(1, (2, 3)) == 4
    assert output(session) == [1, 2, 3]


@pytest.mark.parametrize(("position", "tokens"), [(3, (1,)), (1, (9, 3))])
def test_a_step_beyond_a_gap_or_against_the_text_is_out_of_step(position, tokens):
    session = opened(output=(1, 2))
    with pytest.raises(OutOfStep) as refused:
        session.take(position, tokens)
    assert "9" not in str(refused.value)
    assert output(session) == [1, 2]


@pytest.mark.parametrize(("output_", "tokens"), [((1,), (2, 3)), ((1, 2, 3), ())])
def test_an_output_beyond_max_tokens_is_refused(output_, tokens):
    with pytest.raises(InvalidRequest, match="max_tokens"):
        opened(max_tokens=2, output=output_).take(len(output_), tokens)


@pytest.mark.parametrize("numbers", [{"term": 1 << 16}, {"opening": 1 << 16}])
def test_numbers_that_no_key_holds_are_refused(numbers):
    with pytest.raises(InvalidRequest, match="65536"):
        opened(**numbers)


def test_keys_differ_by_term_opening_and_number():
    names = [DraftName(o, n) for o in (1, 2) for n in (0, 1)]
    assert len({draft_key(term, name) for term in (1, 2) for name in names}) == 8


STOP = {"stop_token_ids": (9,)}
CUTS = {
    "at the window": ({"window": 2}, (1, 2, 3), (1, 2), 1),
    "at max_tokens": ({"max_tokens": 3, "output": (1,)}, (2, 3, 4), (2, 3), 0),
    "behind a stop token": (STOP, (1, 9, 2), (1, 9), 0),
    "at no stop token before min_tokens": (STOP | {"min_tokens": 2}, (9, 9, 9, 1), (9, 9, 9), 0),
}


@pytest.mark.parametrize(("changes", "tokens", "sent", "room"), CUTS.values(), ids=CUTS)
def test_a_chain_is_cut_and_nothing_follows(changes, tokens, sent, room):
    session = opened(**changes)
    row = drafted(session, *tokens)
    assert (row.tree.token_ids, row.final) == (sent, True)
    assert (session.room, session.due) == (0, False)
    session.take(session.committed_length, sent[:1])
    assert session.room == room


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_drawn_stop_token_ends_no_draft(mode):
    session = opened(**STOP, mode=mode)
    row = drafted(session, 5, 9, 6)
    assert (row.tree.token_ids, row.final) == ((5, 9, 6), False)
    assert session.room == session.window - 3


@pytest.mark.parametrize("mode", SAMPLED)
def test_when_drawn_tokens_leave_does_not_hang_on_what_they_are(mode):
    shapes = set()
    for first in range(12):
        session = opened(**STOP, mode=mode, window=4, num_candidates=1)
        rows = [drafted(session, token) for token in (first, 9, first, 3)]
        shapes.add(tuple((row.position, len(row.tree), row.final) for row in rows))
    assert len(shapes) == 1


def test_laws_and_sources_leave_with_their_tokens():
    rows = tuple(t.SparseRow((token, 7), (0.75, 0.25)) for token in (4, 5, 6))
    session = opened(mode=t.VerifyMode.STANDARD, window=4)
    sampled = t.DraftTree((4, 5, 6), q=rows, proposal=t.Proposal.SAMPLED)
    session.absorb(Proposed(sampled, sources=bytes([1, 2, 1])))
    session.take(0, (4,))
    session.absorb(chain(8, 8, 8))
    row = session.taken()
    assert (row.tree.token_ids, row.tree.proposal) == ((5, 6, 8, 8), t.Proposal.SAMPLED)
    assert row.tree.q == (*rows[1:], *[t.SparseRow((8,), (1.0,))] * 2)
    assert row.sources == bytes([2, 1, 0, 0])


def test_of_a_session_in_turns_the_whole_draft_leaves_at_once():
    session = opened(window=3, synchronous=True)
    assert [drafted(session, token) for token in (1, 2)] == [None, None]
    assert drafted(session, 3).tree.token_ids == (1, 2, 3)
    session.take(0, (1, 2, 3, 4))
    session.absorb(chain(5, final=True))
    assert session.taken().tree.token_ids == (5,)


def test_that_nothing_follows_is_said_once_for_each_text():
    session = opened()
    drafted(session, 1)
    row = drafted(session, final=True)
    assert (row.position, row.hash, len(row.tree), row.final) == (1, hashed(1), 0, True)
    assert session.taken() is None
    assert not session.due
    session.take(0, (1,))
    assert session.due


def test_a_tree_leaves_the_text_alone_and_is_a_draft_of_its_own_name():
    session = opened(output=(1,))
    tree = t.DraftTree((5, 6, 7), parents=(-1, -1, 0))
    assert session.absorb(Proposed(tree, sources=bytes([1, 1, 2])), 2.0)
    row = session.taken()
    assert (row.name.number, row.position, row.tree, row.final) == (1, 1, tree, True)
    assert (row.sources, row.draft_ms) == (bytes([1, 1, 2]), 2.0)
    assert (output(session), session.due, session.taken()) == ([1], False, None)
    session.take(1, (5, 7))
    session.absorb(Proposed(tree))
    assert session.taken().name.number > row.name.number + 1


def test_a_tree_behind_a_tail_has_it_as_its_trunk_and_the_tail_is_told_again_after_it():
    session = opened()
    first = drafted(session, 3, 4)
    tree = t.DraftTree((5, 6, 7), parents=(-1, -1, 0))
    session.absorb(Proposed(tree, reach=(0.5, 0.25, 0.2)))
    row = session.taken()
    assert row.name > first.name
    assert (row.position, row.hash) == (0, hashed())
    assert row.tree.token_ids == (3, 4, 5, 6, 7)
    assert row.tree.parents == (-1, 0, 1, 1, 2)
    assert row.reach == (1.0, 1.0, 0.5, 0.25, 0.2)
    session.take(0, (3,))
    again = drafted(session, 8)
    assert again.name > row.name
    assert (again.position, again.tree.token_ids) == (1, (4, 8))


def test_a_chain_with_chances_is_a_draft_by_itself():
    session = opened()
    assert session.absorb(Proposed(t.DraftTree((5, 6)), reach=(0.9, 0.5)))
    row = session.taken()
    assert (row.tree.parents, row.reach, output(session)) == (None, (0.9, 0.5), [])


def test_a_chain_that_spells_out_its_parents_is_a_chain():
    session = opened()
    session.absorb(Proposed(t.DraftTree((5, 6), parents=(-1, 0))))
    assert session.taken().tree.parents is None
    assert output(session) == [5, 6]


def test_a_smaller_window_keeps_the_tail_and_a_larger_one_goes_on():
    session = opened()
    drafted(session, 1, 2, 3, 4)
    session.set_window(2)
    assert (output(session), session.room) == ([1, 2, 3, 4], 0)
    session.set_window(6)
    assert (session.due, session.room) == (True, 2)
    session.absorb(Proposed(final=True))
    session.set_window(5)
    assert not session.due, "it said that nothing follows"
    session.set_window(7)
    assert session.due


def test_what_the_target_said_is_kept_until_a_proposal_or_of_the_newest_steps():
    session = opened(top_rows=1)
    rows = [bytes([i] * 8) for i in range(70)]
    session.take(0, (1,), rows[0])
    session.take(1, (2,), rows[1])
    assert session.top_rows == rows[0] + rows[1]
    session.take(2, (3,), b"odd")
    assert session.top_rows == rows[0] + rows[1]
    session.take(3, (4,), b"".join(rows[:64]))
    assert session.top_rows == b"".join(rows[:64])
    session.absorb(chain(5))
    assert session.top_rows == b""


def test_nothing_proposed_that_may_come_yet_says_nothing():
    session = opened()
    session.absorb(Proposed())
    assert session.taken() is None
    assert session.due


def test_who_had_nothing_to_draft_from_tries_again_and_what_stands_stays():
    session = opened()
    session.absorb(Proposed(final=True))
    assert session.taken() is not None
    session.try_again()
    assert session.due
    session.absorb(Proposed(final=True))
    assert session.taken() is None, "that was said"
    session.try_again()
    session.absorb(chain(1, 2))
    row = session.taken()
    assert row is not None
    assert row.tree.token_ids == (1, 2)
    session.absorb(Proposed(final=True))
    session.try_again()
    assert not session.due
