"""Several methods for one session: whose turn it is, what is merged, and what stays right."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.contract.errors import Overloaded
from services.contract.worker_messages import SessionStarted
from services.drafter.combined import CombinedDrafter, Methods, merge
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.chains import ChainLengths
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey
from tests.services import drafter_kit
from tests.services.drafter_kit import (
    EXACT,
    SAMPLED,
    VOCAB,
    FakeEngine,
    Worker,
    paths_of,
    tokens_of,
)
from tests.tries import tries

KEY = (0, "s")


def chain(*tokens):
    return Proposed(t.DraftTree(tokens))


NOTHING = Proposed(final=True)


@dataclass
class Scripted:
    """A member that gives what it is told to, in order, and counts how often it is asked."""

    answers: list[Proposed] = field(default_factory=list)
    modes: frozenset[t.VerifyMode] = frozenset(t.VerifyMode)
    full: bool = False
    samples: bool = True
    trees: bool = False
    asked: int = 0
    restless: bool = False
    moments: int = 0
    opened: list[SessionKey] = field(default_factory=list)
    rewound: list[int] = field(default_factory=list)

    def describe(self, worker):
        return worker

    def usage(self):
        return KVUsage(1, 2)

    def open(self, key, opening):
        if self.full:
            raise Overloaded("full")
        self.opened.append(key)

    def rewind(self, key, length):
        self.rewound.append(length)

    def close(self, key):
        self.opened.remove(key)

    def propose(self, asks):
        self.asked += len(asks)
        return [self.answers.pop(0) if self.answers else NOTHING for _ in asks]

    def idle(self, asks):
        self.moments += 1
        return self.restless


def opened(*members, **changes):
    drafter = CombinedDrafter(dict(zip("ab", members, strict=False)))
    drafter.open(KEY, drafter_kit.opening(prompt=(1, 2), **changes))
    return drafter


def asked(drafter, *tail, draft_key=1):
    (proposed,) = drafter.propose([Ask(KEY, draft_key, [1, 2, *tail], 2, 2, room=6)])
    return proposed


# --- chains ---------------------------------------------------------------------


def test_the_first_that_has_tokens_gives_the_draft():
    first, second = Scripted([NOTHING, chain(3)]), Scripted([chain(4), chain(5)])
    drafter = opened(first, second)
    assert asked(drafter).tree.token_ids == (4,)
    assert asked(drafter, 4).tree.token_ids == (3,)
    assert (first.asked, second.asked) == (2, 1)


def test_the_end_of_a_draft_that_has_begun_is_drafted_in_the_opposite_order():
    # The first answer of the second is the prompt's.
    first, second = Scripted([chain(3)] * 3), Scripted([NOTHING, chain(4)])
    drafter = CombinedDrafter({"a": first, "b": second}, lengthen=2)
    drafter.open(KEY, drafter_kit.opening())
    given = []
    for text, room in (([1, 2], 2), ([1, 2, 3], 3), ([1, 2, 3], 2), ([1, 2, 3], 1)):
        (proposed,) = drafter.propose([Ask(KEY, 1, text, 2, 2, room)])
        given.append(proposed.tree.token_ids)
    assert given == [(3,), (3,), (4,), (3,)]


def test_nothing_is_final_only_if_everybody_says_so():
    waiting = Proposed(fed=3)
    assert asked(opened(Scripted([NOTHING]), Scripted([waiting]))) == waiting
    assert asked(opened(Scripted([NOTHING]), Scripted([NOTHING]))) == NOTHING


def test_a_member_takes_its_prompt_in_while_another_one_drafts():
    first = Scripted([chain(3), chain(3), chain(3)])
    second = Scripted([Proposed(fed=2), chain(9)])
    drafter = opened(first, second)
    for _ in range(3):
        assert asked(drafter).tree.token_ids == (3,)
    assert second.asked == 2


def test_a_draft_goes_without_its_law():
    law = (t.SparseRow((4,), (1.0,)),)
    drawn = Proposed(t.DraftTree((4,), None, law, t.Proposal.SAMPLED))
    assert asked(opened(Scripted([drawn]), Scripted())).tree == t.DraftTree((4,))


def test_sessions_are_asked_for_together():
    member = Scripted([NOTHING, NOTHING])
    drafter = CombinedDrafter({"a": member, "b": Scripted()})
    for name in "ab":
        drafter.open((0, name), drafter_kit.opening())
    asks = [Ask((0, name), 1, [1, 2], 2, 2, room=6) for name in "ab"]
    assert drafter.propose(asks) == [NOTHING, NOTHING]
    assert member.asked == 2


@pytest.mark.parametrize(("restless", "moments"), [(True, (1, 0)), (False, (1, 1))])
def test_an_idle_moment_is_the_first_members_that_can_use_it(restless, moments):
    first, second = Scripted(restless=restless), Scripted()
    drafter = opened(first, second)
    assert drafter.idle([]) == restless
    assert (first.moments, second.moments) == moments


# --- opening and closing --------------------------------------------------------


def test_a_member_without_room_leaves_nothing_open():
    first = Scripted()
    with pytest.raises(Overloaded):
        opened(first, Scripted(full=True))
    assert first.opened == []


def test_a_session_is_rewound_and_closed_everywhere():
    members = Scripted(), Scripted()
    drafter = opened(*members)
    drafter.rewind(KEY, 1)
    drafter.close(KEY)
    drafter.close(KEY)
    assert [(member.rewound, member.opened) for member in members] == [([1], []), ([1], [])]


def test_it_serves_the_modes_of_every_member():
    assert CombinedDrafter({"a": Scripted(), "b": Scripted()}).modes == frozenset(t.VerifyMode)
    greedy = Scripted(modes=frozenset([t.VerifyMode.GREEDY, t.VerifyMode.BLOCK]))
    assert CombinedDrafter({"a": Scripted(), "b": greedy}).modes == {
        t.VerifyMode.GREEDY,
        t.VerifyMode.BLOCK,
    }


LAW = t.SparseRow((4, 5), (0.25, 0.75))
DRAWN = Proposed(t.DraftTree((5,), None, (LAW,), t.Proposal.SAMPLED))


@pytest.mark.parametrize("mode", SAMPLED)
def test_under_rejection_every_token_has_its_law(mode):
    drafter = opened(Scripted([chain(7, 8), NOTHING]), Scripted([NOTHING, DRAWN]), mode=mode)
    copied, sampled = (asked(drafter).tree for _ in range(2))
    assert copied.proposal is sampled.proposal is t.Proposal.SAMPLED
    assert copied.q == (t.SparseRow((7,), (1.0,)), t.SparseRow((8,), (1.0,)))
    assert (sampled.token_ids, sampled.q) == ((5,), (LAW,))


@pytest.mark.parametrize("mode", SAMPLED)
def test_under_rejection_whoever_has_drawn_goes_on_until_nothing_is_left_to_judge(mode):
    first, second = Scripted([NOTHING] + [chain(7)] * 9), Scripted([NOTHING] + [DRAWN] * 9)
    drafter = opened(first, second, mode=mode)
    assert asked(drafter).tree.token_ids == ()
    given = [asked(drafter, *tail).tree.token_ids for tail in ([], [7], [])]
    first.answers.insert(0, NOTHING)
    given += [asked(drafter, *tail).tree.token_ids for tail in ([7], [7, 5], [7, 5, 5], [])]
    assert given == [(7,), (7,), (7,), (5,), (5,), (5,), (7,)]
    second.answers.clear()
    first.answers.insert(0, NOTHING)
    second.answers += [DRAWN, Proposed(waits=True)]
    assert [asked(drafter, *tail).tree.token_ids for tail in ([], [5])] == [(5,), ()]


# --- trees ----------------------------------------------------------------------


@st.composite
def trees(draw):
    tokens = draw(st.lists(st.integers(0, 2), max_size=8).map(tuple))
    if draw(st.booleans()):
        return t.DraftTree(tokens)
    return t.DraftTree(tokens, tuple(draw(st.integers(-1, i - 1)) for i in range(len(tokens))))


@tries(300)
@given(st.lists(trees(), max_size=4))
def test_a_merged_tree_has_the_paths_of_all_and_each_once(drafts):
    tree, _ = merge(drafts, [bytes(len(draft)) for draft in drafts])
    assert set(paths_of(tree)) == {path for draft in drafts for path in paths_of(draft)}
    assert len(set(paths_of(tree))) == len(tree)
    assert all(parent < node for node, parent in enumerate(tree.every_parent))


@tries(300)
@given(st.lists(trees(), max_size=4), st.integers(1, 6))
def test_a_full_tree_keeps_whole_paths_and_the_first_drafts_first(drafts, most):
    said = [bytes((place + 1,)) * len(draft) for place, draft in enumerate(drafts)]
    (tree, sources), (begun, of_begun) = merge(drafts, said), merge(drafts, said, most)
    whole, cut = paths_of(tree), paths_of(begun)
    assert cut == whole[:most]
    assert of_begun == sources[:most]
    first = [next(n for n, d in enumerate(drafts, 1) if path in paths_of(d)) for path in whole]
    assert sources == bytes(first)
    assert all(path[:-1] in cut for path in cut if len(path) > 1)


def test_a_draft_of_several_methods_says_which_of_them_each_token_is_of():
    named = {"model": Scripted([NOTHING, chain(3, 4)]), "ngram": Scripted([chain(5)])}
    named["ngram"].answers[0] = replace(chain(5), sources=b"\x02")
    drafter = Methods(named).find("ngram,model")
    drafter.open(KEY, drafter_kit.opening())
    (first,) = drafter.propose([Ask(KEY, 1, [1, 2], 2, 2, room=6)])
    (second,) = drafter.propose([Ask(KEY, 1, [1, 2, 5], 2, 2, room=6)])
    assert first.sources == bytes([t.DraftSource.OTHER_TEXTS])
    assert second.sources == bytes([t.DraftSource.MODEL] * 2)


def test_a_tree_leaves_when_every_member_has_given_its_draft():
    law = (t.SparseRow((3, 4), (0.5, 0.5)),)
    fork = t.DraftTree((3, 4), (-1, -1), law, t.Proposal.SAMPLED, without_replacement=True)
    first, second = Scripted([chain(3, 5)]), Scripted([Proposed(), Proposed(fork)])
    drafter = opened(first, second, num_candidates=2)
    assert asked(drafter) == Proposed()
    assert asked(drafter).tree == t.DraftTree((3, 5, 4), (-1, 0, -1))
    assert (first.asked, second.asked) == (1, 2)


@pytest.mark.parametrize("change", [{"draft_key": 2}, {"tail": (8,)}, {"rewind": True}])
def test_drafts_for_another_text_are_not_merged(change):
    first = Scripted([chain(3, 5), chain(6)])
    drafter = opened(first, Scripted([Proposed(), chain(7)]), num_candidates=2)
    assert asked(drafter) == Proposed()
    if "rewind" in change:
        drafter.rewind(KEY, 2)
    after = asked(drafter, *change.get("tail", ()), draft_key=change.get("draft_key", 1))
    assert after.tree == t.DraftTree((6, 7), (-1, -1))


def test_no_draft_of_anybody_ends_the_turn_of_a_tree_session():
    assert asked(opened(Scripted(), Scripted(), num_candidates=2)) == NOTHING


# --- in the worker's core -------------------------------------------------------


def test_methods_are_found_alone_together_and_by_default():
    first, second = Scripted(), Scripted()
    methods = Methods({"a": first, "b": second})
    assert methods.find("") is methods.find("a") is first
    assert methods.find("b, a") is methods.find("b,a") is not methods.find("a,b")
    assert [methods.find(name) for name in ("c", "a,c", "a,a", "a,")] == [None] * 4


@pytest.mark.parametrize(
    ("method", "mode", "why"),
    [
        ("a,magic", t.VerifyMode.GREEDY, "no method 'a,magic' here; there is a, b"),
        ("a,b", t.VerifyMode.STANDARD, "method 'a,b' does not draft in mode STANDARD"),
        ("b,a", t.VerifyMode.BLOCK, "method 'b,a' does not draft in mode BLOCK"),
    ],
)
def test_what_cannot_be_combined_is_refused(method, mode, why):
    worker = Worker({"a": Scripted(), "b": Scripted(modes=frozenset(EXACT))})
    worker.open(method=method, mode=mode)
    assert [(gone.reason, gone.message) for gone in worker.gone.values()] == [
        (t.FailureReason.UNSUPPORTED, why)
    ]


def test_trees_of_several_methods_are_refused_under_rejection():
    worker = Worker({"a": Scripted(), "b": Scripted()})
    worker.open(method="a,b", mode=t.VerifyMode.STANDARD, num_candidates=2)
    gone = worker.gone["s"]
    assert gone.reason is t.FailureReason.INVALID
    assert "num_candidates" in gone.message


def test_k_v_is_counted_once():
    worker = Worker({"a": Scripted(), "b": Scripted()})
    worker.open(method="a,b")
    assert worker.take() == [(0, SessionStarted(1, 1))]
    progress = worker.core.progress()
    assert (progress.kv_tokens_used, progress.kv_tokens_capacity) == (2, 4)


class Checked(ModelDrafter):
    """A model drafter whose K/V is checked against the text it stands for, at every ask."""

    def propose(self, asks):
        answers = super().propose(asks)
        for ask in asks:
            kv = self._sessions[ask.key].cache.tokens
            assert kv[: len(ask.text)] == list(ask.text)[: len(kv)]
        return answers


PROMPT = [1, 2, 3, 4, 5, 1, 2, 3]
turns = st.lists(st.tuples(st.integers(0, 5), st.integers(0, VOCAB - 1)), max_size=8)


@tries(60)
@given(
    turns,
    st.sampled_from(["ngram,model", "model,ngram"]),
    st.sampled_from([1, 3]),
    st.sampled_from([0, 3]),
)
def test_after_any_steps_the_drafts_are_those_of_a_session_opened_on_that_text(
    turns, method, width, lengthen
):
    torch.set_num_threads(1)
    said = []
    worker = worker_of_both(lengthen)
    options = {"method": method, "num_candidates": width, "phrase_scope": "acme"}
    worker.open("s", PROMPT, **options)
    for accepted, token in turns:
        chains = [draft for draft in drafted(worker) if draft.tree.is_chain]
        fresh = (*tokens_of(chains)[:accepted], token)
        worker.say("s", len(said), fresh)
        said += fresh
    drafted(worker)
    # Nothing of the draft is left.
    tail = worker.session.text[len(PROMPT) + len(said) :]
    other = (tail[0] + 1) % VOCAB if tail else 11
    worker.say("s", len(said), (other,))
    trees = [draft.tree for draft in drafted(worker)]
    new = worker_of_both(lengthen)
    new.open("s", (*PROMPT, *said, other), **options)
    assert trees == [draft.tree for draft in drafted(new)]
    assert any(map(len, trees))


def drafted(worker):
    """What is drafted; no session fails."""
    worker.steps(200)
    assert not worker.core.step(), "the core never comes to rest"
    assert not worker.gone
    return worker.drafted()


def worker_of_both(lengthen):
    ngram = NgramDrafter(ChainLengths(2, 3))
    return Worker({"ngram": ngram, "model": Checked(FakeEngine())}, lengthen=lengthen)
