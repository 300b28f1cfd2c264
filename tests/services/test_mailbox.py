"""The mailbox of a session: the newest draft, as far as it follows the output."""

from collections import namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract.frames import NO_NAME, DraftName, DraftRow
from services.contract.types import EMPTY_HASH, DraftTree, Proposal, SparseRow, extend_hash
from services.runtime.proposer import LocalDraft
from services.verifier.running.mailbox import MOST_HELD, Mailbox
from services.verifier.running.output import Output

N1, N2 = DraftName(1, 1), DraftName(1, 2)


def draft(tokens, before=(), name=N1, parents=None, hashed=None, **more):
    """A message behind the output `before`."""
    tree = more.pop("tree", None) or DraftTree(tuple(tokens), parents)
    hashed = extend_hash(EMPTY_HASH, before) if hashed is None else hashed
    return DraftRow(1, name, len(before), hashed, tree, **more)


def opened(*said, first=0):
    return Mailbox(first), Output([9, 9, *said], 2)


def put(box, output, message, now=1.0):
    return box.put(message, output, now)


def say(box, output, *tokens):
    output.extend(tokens)
    box.follow(tokens)


def held(box):
    return tuple(box.tokens)


# --- one rule after the other -------------------------------------------------------


def test_a_draft_behind_this_output_is_held():
    box, output = opened(4, 5)
    assert put(box, output, draft((1, 2), (4, 5)))
    assert (held(box), box.name) == ((1, 2), N1)


def test_tokens_of_the_same_name_behind_the_last_one_go_on_with_it():
    box, output = opened(4)
    put(box, output, draft((1, 2), (4,), draft_ms=1.0))
    assert put(box, output, draft((3,), (4, 1, 2), draft_ms=0.5), now=7.0)
    assert (held(box), box.draft_ms, box.arrived) == ((1, 2, 3), 1.5, 7.0)


@pytest.mark.parametrize(
    "message",
    [
        draft((3,), (4, 1, 9)),
        draft((3,), (4, 1)),
        draft((3,), (4, 1, 2, 3)),
        draft((1, 2), (4,)),
    ],
    ids=["another text", "an overlap", "a gap", "doubled"],
)
def test_nothing_else_of_the_same_name_is_joined(message):
    box, output = opened(4)
    put(box, output, draft((1, 2), (4,)))
    assert not put(box, output, message)
    assert held(box) == (1, 2)


def test_another_name_replaces_the_draft_and_is_never_joined_to_it():
    box, output = opened(4)
    put(box, output, draft((1, 2), (4,)))
    assert not put(box, output, draft((3,), (4, 1, 2), N2))
    assert put(box, output, draft((7,), (4,), N2))
    assert (held(box), box.name) == ((7,), N2)


def test_an_older_name_is_nothing_any_more_even_when_nothing_is_held():
    box, output = opened(4)
    put(box, output, draft((7,), (4,), N2))
    assert not put(box, output, draft((1, 2), (4,)))
    say(box, output, 8)
    assert not put(box, output, draft((1, 2), (4, 8)))
    assert held(box) == ()


def test_drafts_of_openings_before_the_first_one_are_stale():
    box, output = opened(first=2)
    assert not put(box, output, draft((1,), name=DraftName(1, 9)))
    assert put(box, output, draft((1,), name=DraftName(2, 0)))


def test_a_draft_of_another_text_or_of_one_that_is_still_to_come_is_dropped():
    box, output = opened(4, 5)
    assert not put(box, output, draft((1,), (4, 6)))
    assert not put(box, output, draft((1,), (4, 5, 1)))
    assert put(box, output, draft((5, 1), (4,)))
    assert held(box) == (1,)


def test_a_newer_draft_that_says_nothing_new_leaves_the_older_one():
    box, output = opened(4)
    put(box, output, draft((1, 2), (4,)))
    assert not put(box, output, draft((4,), (), N2))
    assert not put(box, output, draft((3, 1), (), N2))
    assert (held(box), box.name) == ((1, 2), N1)
    assert put(box, output, draft((6,), (4, 1, 2)))


def test_the_head_that_the_output_says_is_cut_off():
    box, output = opened()
    put(box, output, draft((1, 2, 3, 4), draft_ms=4.0, sources=b"\5\6\7\x08"))
    say(box, output, 1, 2)
    assert (held(box), box.draft_ms, box.sources) == ((3, 4), 2.0, b"\7\x08")
    assert put(box, output, draft((5,), (1, 2, 3, 4), sources=b"\x09"))
    assert (held(box), box.sources) == ((3, 4, 5), b"\7\x08\x09")


def test_a_draft_from_which_the_output_departs_is_dropped_whole():
    box, output = opened()
    put(box, output, draft((1, 2, 3)))
    say(box, output, 1, 9)
    assert (held(box), box.name) == ((), NO_NAME)
    assert not put(box, output, draft((4,), (1, 2, 3)))


def test_rows_of_q_are_cut_and_joined_with_their_tokens():
    rows = [SparseRow((token, 0), (0.5, 0.5)) for token in range(1, 5)]
    box, output = opened()
    one = DraftTree((1, 2), None, tuple(rows[:2]), Proposal.SAMPLED)
    more = DraftTree((3, 4), None, tuple(rows[2:]), Proposal.SAMPLED)
    put(box, output, draft((), tree=one))
    put(box, output, draft((), (1, 2), tree=more))
    say(box, output, 1)
    taken = box.first_tokens(2, 9).tree
    assert (taken.token_ids, taken.q) == ((2, 3), tuple(rows[1:3]))
    assert taken.proposal is Proposal.SAMPLED
    assert box.next_level().q == (rows[1],)


def test_drawn_tokens_are_not_joined_to_tokens_that_were_not():
    box, output = opened()
    put(box, output, draft((1,)))
    drawn = DraftTree((2,), None, (SparseRow((2,), (1.0,)),), Proposal.SAMPLED)
    assert not put(box, output, draft((), (1,), tree=drawn))


TREE = (1, 2, 3, 4, 5, 6)
PARENTS = (-1, -1, 0, 1, 1, 3)


def test_a_tree_goes_down_to_the_child_that_was_said():
    rows = tuple(SparseRow((token,), (1.0,)) for token in range(4))
    tree = DraftTree(TREE, PARENTS, rows, Proposal.SAMPLED, True)
    box, output = opened()
    put(box, output, draft((), tree=tree, reach=(0.9, 0.8, 0.5, 0.4, 0.3, 0.2)))
    say(box, output, 2)
    taken = box.first_tokens(9, 9)
    assert (taken.tree.token_ids, taken.tree.parents) == ((4, 5, 6), (-1, -1, 0))
    assert taken.tree.q == (rows[2], rows[3])
    assert taken.tree.without_replacement
    assert taken.reach == pytest.approx((0.5, 0.375, 0.25))
    say(box, output, 7)
    assert held(box) == ()


def test_a_tree_is_cut_by_places_and_by_depth():
    rows = tuple(SparseRow((token,), (1.0,)) for token in range(4))
    box, output = opened()
    put(box, output, draft((), tree=DraftTree(TREE, PARENTS, rows, Proposal.SAMPLED)))
    first = box.first_tokens(4, 9).tree
    assert (first.token_ids, first.parents, first.q) == ((1, 2, 3, 4), (-1, -1, 0, 1), rows[:3])
    flat = box.next_level()
    assert (flat.token_ids, flat.parents, flat.q) == ((1, 2), (-1, -1), rows[:1])
    assert box.levels == 3


def nothing(before, name=N1):
    return draft((), before, name, tree=DraftTree(()), final=True)


def test_an_empty_message_says_that_nothing_follows_before_the_output_grows():
    box, output = opened(4)
    put(box, output, draft((1,), (4,)))
    assert not put(box, output, nothing((4,)))
    assert put(box, output, nothing((4, 1)))
    assert (held(box), box.final) == ((1,), True)
    say(box, output, 1)
    assert not box.final
    assert put(box, output, nothing((4, 1)))
    assert box.final


def test_an_empty_message_of_a_newer_name_takes_the_draft_back():
    box, output = opened(4)
    put(box, output, draft((1,), (4,)))
    assert put(box, output, nothing((4,), N2))
    assert (held(box), box.final) == ((), True)
    assert not put(box, output, draft((1,), (4,)))


@pytest.mark.parametrize(
    "late",
    [nothing((4,), N2), nothing((4, 2), N2), nothing((4, 1, 2), N2)],
    ids=["shorter", "another", "longer"],
)
def test_an_empty_message_of_another_text_or_a_shorter_one_says_nothing(late):
    box, output = opened(4)
    put(box, output, draft((1, 2), (4,)))
    say(box, output, 1)
    assert not put(box, output, late)
    assert (held(box), box.final) == ((2,), False)
    assert put(box, output, draft((3,), (4, 1, 2)))
    assert held(box) == (2, 3)


def test_tokens_without_their_laws_do_not_go_on_with_some_that_have_them():
    row = SparseRow((1, 2), (0.5, 0.5))
    lawful, bare = ((row,), None), (None, (row,))
    for first, second in (lawful, bare):
        box, output = opened()
        put(box, output, draft((), tree=DraftTree((1,), None, first, Proposal.SAMPLED)))
        more = DraftTree((2,), None, second, Proposal.SAMPLED)
        assert not put(box, output, draft((), (1,), tree=more))
        assert box.next_level((1,)) == DraftTree()


def test_whole_hypotheses_are_never_gone_on_with():
    for more in ({"parents": (-1, -1)}, {"reach": (0.5, 0.4)}):
        box, output = opened()
        put(box, output, draft((1, 2), **more))
        assert not put(box, output, draft((3,), (1, 2)))
        assert held(box) == (1, 2)


def test_a_draft_of_the_verifiers_own_gives_way_to_any_drafters():
    box, output = opened(4)
    box.propose(LocalDraft(DraftTree((1, 2))), 1.0)
    assert (held(box), box.name, box.final) == ((1, 2), NO_NAME, True)
    assert put(box, output, draft((3,), (4,)))
    assert held(box) == (3,)


def test_a_drafter_that_floods_fills_no_more_than_its_place():
    box, output = opened()
    said = []
    for _ in range(40):
        put(box, output, draft([1] * 32, said))
        said += [1] * 32
    assert len(box) <= MOST_HELD


# --- against a model ----------------------------------------------------------------

Model = namedtuple("Model", "name whole")
"""What is held, spelt out: the text of the output before it and the draft, of a tree each path."""


def paths(before, tree):
    found = []
    for token, parent in zip(tree.token_ids, tree.every_parent, strict=True):
        found.append((*(found[parent] if parent >= 0 else before), token))
    return found


def left(model, text):
    """What a model says behind a text: the paths that go on from it, in order."""
    return [path[len(text) :] for path in model.whole if path[: len(text)] == text < path]


tokens = st.integers(0, 1)
names = st.builds(DraftName, st.integers(1, 2), st.integers(0, 2))


@st.composite
def trees(draw):
    ids = draw(st.lists(tokens, min_size=1, max_size=5))
    if draw(st.booleans()):
        return DraftTree(tuple(ids))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(len(ids)))
    siblings = set(zip(parents, ids, strict=True))
    return DraftTree(tuple(ids), parents if len(siblings) == len(ids) else None).normal()


@given(st.data())
def test_any_course_of_drafts_and_tokens_leaves_what_the_model_holds(data):
    box, output = opened()
    text, model, newest = (), Model(NO_NAME, []), NO_NAME
    chain = False
    for number in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            said = tuple(data.draw(st.lists(tokens, min_size=1, max_size=2)))
            say(box, output, *said)
            text += said
            continue
        name, tree = data.draw(names), data.draw(trees())
        hold = left(model, text)
        end = text + max(hold, key=len, default=())
        place = data.draw(st.integers(0, len(end)))
        before = data.draw(st.sampled_from([end[:place], (*end[:place], 1)]))
        changed = put(box, output, draft((), before, name, tree=tree), float(number))
        ours = paths(before, tree)
        if name < newest:
            assert not changed
        elif hold and name == model.name:
            if changed := chain and tree.parents is None and before == end:
                model = Model(name, model.whole + ours)
        elif before == text[: len(before)] and left(Model(name, ours), text):
            model, newest, chain = Model(name, ours), name, tree.parents is None
        hold = left(model, text)
        taken = box.first_tokens(99, 99)
        assert taken.tree.parents is None or not taken.tree.is_chain
        assert paths((), taken.tree) == [path for path in hold if path]
        assert taken.name == (model.name if hold else NO_NAME)
        assert all(own == extend_hash(EMPTY_HASH, text[:i]) for i, own in enumerate(output.hashes))
