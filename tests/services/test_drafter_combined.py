"""Several methods for one session: whose turn it is, what is merged, and what stays right."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.contract import types as t
from services.contract.errors import Overloaded
from services.drafter.combined import CombinedDrafter, Methods, merge
from services.drafter.core import DrafterCore
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.ngram.phrases import NO_PHRASE, Phrase, PhraseLimits, PhrasePool
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey
from tests.services.drafter_kit import VOCAB, FakeEngine

KEY = (0, "s")


def chain(*tokens: int) -> Proposed:
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

    def describe(self, worker: t.WorkerDescription) -> t.WorkerDescription:
        return worker

    def usage(self) -> KVUsage:
        return KVUsage(1, 2)

    def open(self, key: SessionKey, opening: t.OpenDraft) -> None:
        if self.full:
            raise Overloaded("full")
        self.opened.append(key)

    def rewind(self, key: SessionKey, length: int) -> None:
        self.rewound.append(length)

    def close(self, key: SessionKey) -> None:
        self.opened.remove(key)

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        self.asked += len(asks)
        return [self.answers.pop(0) if self.answers else NOTHING for _ in asks]

    def idle(self, asks: Iterable[Ask]) -> bool:
        self.moments += 1
        return self.restless


def opening(**changes: Any) -> t.OpenDraft:
    values: dict[str, Any] = {"prompt": (1, 2), "mode": t.VerifyMode.GREEDY, "window": 6, **changes}
    sampling = values.pop("sampling", t.ResolvedSampling(max_tokens=60))
    return t.OpenDraft("s", 1, committed=(), sampling=sampling, seed=7, **values)


def opened(*members: Scripted, **changes: Any) -> CombinedDrafter:
    drafter = CombinedDrafter(members)
    drafter.open(KEY, opening(**changes))
    return drafter


def asked(drafter: CombinedDrafter, *tail: int, epoch: int = 1) -> Proposed:
    (proposed,) = drafter.propose([Ask(KEY, epoch, [1, 2, *tail], 2, 2, room=6)])
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
    drafter = CombinedDrafter([first, second], lengthen=2)
    drafter.open(KEY, opening())
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
    drafter = opened(
        Scripted([Proposed(t.DraftTree((4,), None, law, t.Proposal.SAMPLED))]), Scripted()
    )
    assert asked(drafter).tree == t.DraftTree((4,))


def test_sessions_are_asked_for_together():
    member = Scripted([NOTHING, NOTHING])
    drafter = CombinedDrafter([member, Scripted()])
    for name in "ab":
        drafter.open((0, name), opening())
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
    assert CombinedDrafter([Scripted(), Scripted()]).modes == frozenset(t.VerifyMode)
    greedy = Scripted(modes=frozenset([t.VerifyMode.GREEDY, t.VerifyMode.BLOCK]))
    assert CombinedDrafter([Scripted(), greedy]).modes == {t.VerifyMode.GREEDY, t.VerifyMode.BLOCK}


@pytest.mark.parametrize("mode", [t.VerifyMode.STANDARD, t.VerifyMode.BLOCK])
def test_under_rejection_every_token_has_its_law(mode):
    law = t.SparseRow((4, 5), (0.25, 0.75))
    drawn = Proposed(t.DraftTree((5,), None, (law,), t.Proposal.SAMPLED))
    drafter = opened(Scripted([chain(7, 8), NOTHING]), Scripted([NOTHING, drawn]), mode=mode)
    copied, sampled = (asked(drafter).tree for _ in range(2))
    assert copied.proposal is sampled.proposal is t.Proposal.SAMPLED
    assert copied.q == (t.SparseRow((7,), (1.0,)), t.SparseRow((8,), (1.0,)))
    assert (sampled.token_ids, sampled.q) == ((5,), (law,))


@pytest.mark.parametrize("mode", [t.VerifyMode.STANDARD, t.VerifyMode.BLOCK])
def test_under_rejection_whoever_has_drawn_goes_on_until_nothing_is_left_to_judge(mode):
    law = t.SparseRow((4, 5), (0.25, 0.75))
    drawn = Proposed(t.DraftTree((5,), None, (law,), t.Proposal.SAMPLED))
    first, second = Scripted([NOTHING] + [chain(7)] * 9), Scripted([NOTHING] + [drawn] * 9)
    drafter = opened(first, second, mode=mode)
    assert asked(drafter).tree.token_ids == ()
    given = [asked(drafter, *tail).tree.token_ids for tail in ([], [7], [])]
    first.answers.insert(0, NOTHING)
    given += [asked(drafter, *tail).tree.token_ids for tail in ([7], [7, 5], [7, 5, 5], [])]
    assert given == [(7,), (7,), (7,), (5,), (5,), (5,), (7,)]
    second.answers.clear()
    first.answers.insert(0, NOTHING)
    second.answers += [drawn, Proposed(waits=True)]
    assert [asked(drafter, *tail).tree.token_ids for tail in ([], [5])] == [(5,), ()]


# --- trees ----------------------------------------------------------------------


def paths(tree: t.DraftTree) -> list[tuple[int, ...]]:
    """Every path from the root, in the order of the nodes."""
    found: list[tuple[int, ...]] = []
    for node, token in enumerate(tree.token_ids):
        parent = node - 1 if tree.parents is None else tree.parents[node]
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@st.composite
def trees(draw: st.DrawFn) -> t.DraftTree:
    tokens = draw(st.lists(st.integers(0, 2), max_size=8).map(tuple))
    if draw(st.booleans()):
        return t.DraftTree(tokens)
    return t.DraftTree(tokens, tuple(draw(st.integers(-1, i - 1)) for i in range(len(tokens))))


@settings(max_examples=300, deadline=None)
@given(st.lists(trees(), max_size=4))
def test_a_merged_tree_has_the_paths_of_all_and_each_once(drafts):
    tree, _ = merge(drafts, [bytes(len(draft)) for draft in drafts])
    assert set(paths(tree)) == {path for draft in drafts for path in paths(draft)}
    assert len(set(paths(tree))) == len(tree)
    assert all(parent < node for node, parent in enumerate(tree.parents or ()))


@settings(max_examples=300, deadline=None)
@given(st.lists(trees(), max_size=4), st.integers(1, 6))
def test_a_full_tree_keeps_whole_paths_and_the_first_drafts_first(drafts, most):
    said = [bytes((place + 1,)) * len(draft) for place, draft in enumerate(drafts)]
    (tree, sources), (begun, of_begun) = merge(drafts, said), merge(drafts, said, most)
    whole, cut = paths(tree), paths(begun)
    assert cut == whole[:most]
    assert of_begun == sources[:most]
    first = [next(n for n, d in enumerate(drafts, 1) if path in paths(d)) for path in whole]
    assert sources == bytes(first)
    assert all(path[:-1] in cut for path in cut if len(path) > 1)


def test_a_draft_of_several_methods_says_which_of_them_each_token_is_of():
    named = {"model": Scripted([NOTHING, chain(3, 4)]), "ngram": Scripted([chain(5)])}
    named["ngram"].answers[0] = replace(chain(5), sources=b"\x02")
    drafter = Methods(named).find("ngram,model")
    assert drafter is not None
    drafter.open(KEY, opening())
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


@pytest.mark.parametrize("change", [{"epoch": 2}, {"tail": (8,)}, {"rewind": True}])
def test_drafts_for_another_text_are_not_merged(change):
    first = Scripted([chain(3, 5), chain(6)])
    drafter = opened(first, Scripted([Proposed(), chain(7)]), num_candidates=2)
    assert asked(drafter) == Proposed()
    if "rewind" in change:
        drafter.rewind(KEY, 2)
    after = asked(drafter, *change.get("tail", ()), epoch=change.get("epoch", 1))
    assert after.tree == t.DraftTree((6, 7), (-1, -1))


def test_no_draft_of_anybody_ends_the_turn_of_a_tree_session():
    assert asked(opened(Scripted(), Scripted(), num_candidates=2)) == NOTHING


# --- in the worker's core -------------------------------------------------------


def core_of(lengthen: int = 0, **drafters: Any) -> tuple[DrafterCore, list[t.DrafterEvent]]:
    events: list[t.DrafterEvent] = []
    core = DrafterCore(
        drafters, emit=lambda _, event: events.append(event), worker_id="d", lengthen=lengthen
    )
    return core, events


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
    exact = frozenset([t.VerifyMode.GREEDY, t.VerifyMode.COUPLED])
    core, events = core_of(a=Scripted(), b=Scripted(modes=exact))
    core.handle(0, opening(method=method, mode=mode))
    assert events == [t.SessionFailed("s", t.FailureReason.UNSUPPORTED, why, 1)]


def test_trees_of_several_methods_are_refused_under_rejection():
    core, events = core_of(a=Scripted(), b=Scripted())
    core.handle(0, opening(method="a,b", mode=t.VerifyMode.STANDARD, num_candidates=2))
    [failed] = events
    assert isinstance(failed, t.SessionFailed)
    assert failed.reason is t.FailureReason.INVALID
    assert "num_candidates" in failed.message


def test_k_v_is_counted_once():
    core, events = core_of(a=Scripted(), b=Scripted())
    core.handle(0, opening(method="a,b"))
    assert isinstance(events[0], t.DraftOpened)
    assert (core.progress().kv_tokens_used, core.progress().kv_tokens_capacity) == (2, 4)


class Checked(ModelDrafter):
    """A model drafter whose K/V is checked against the text it stands for, at every ask."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        answers = super().propose(asks)
        for ask in asks:
            kv = self._sessions[ask.key].cache.tokens
            assert kv[: len(ask.text)] == list(ask.text)[: len(kv)]
        return answers


PROMPT = [1, 2, 3, 4, 5, 1, 2, 3]
turns = st.lists(st.tuples(st.integers(0, 5), st.integers(0, VOCAB - 1), st.booleans()), max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    turns,
    st.sampled_from(["ngram,model", "model,ngram"]),
    st.sampled_from([1, 3]),
    st.sampled_from([0, 3]),
)
def test_after_any_commits_the_drafts_are_those_of_a_session_opened_on_that_text(
    turns, method, width, lengthen
):
    torch.set_num_threads(1)
    said: list[int] = []
    core, events = _core_of_both(lengthen)
    options = {"method": method, "num_candidates": width, "phrase_scope": "acme"}
    core.handle(0, opening(prompt=tuple(PROMPT), **options))
    for epoch, (accepted, token, bump) in enumerate(turns, 2):
        _run(core)
        tail = _chain_of(events)[:accepted]
        fresh = (*tail, token)
        core.handle(0, t.CommitDraft("s", epoch if bump else 1, len(said), fresh))
        said += fresh
        events.clear()
    core.handle(0, t.CommitDraft("s", 99, len(said), (11,)))
    events.clear()
    _run(core)
    new, others = _core_of_both(lengthen)
    new.handle(0, opening(prompt=(*PROMPT, *said, 11), **options))
    others.clear()
    _run(new)
    assert _trees(events) == _trees(others)
    assert any(len(tree) for tree in _trees(others))


def _core_of_both(lengthen: int) -> tuple[DrafterCore, list[t.DrafterEvent]]:
    engine: Any = FakeEngine()
    # Its phrases would tell a session from a new one.
    pool = NoPhrases(PhraseLimits(2, 3))
    return core_of(lengthen, ngram=NgramDrafter(2, 3, pool), model=Checked(engine))


class NoPhrases(PhrasePool):
    """Prompt lookup alone."""

    def look_up(self, scope: str, text: Sequence[int], *, sure: bool = False) -> Phrase:
        return NO_PHRASE


def _run(core: DrafterCore) -> None:
    for _ in range(200):
        if not core.step():
            return
    raise AssertionError("the core never comes to rest")


def _trees(events: list[t.DrafterEvent]) -> list[t.DraftTree]:
    assert not [event for event in events if isinstance(event, t.SessionFailed)]
    return [event.tree for event in events if isinstance(event, t.Draft)]


def _chain_of(events: list[t.DrafterEvent]) -> list[int]:
    return [token for tree in _trees(events) if tree.is_chain for token in tree.token_ids]
