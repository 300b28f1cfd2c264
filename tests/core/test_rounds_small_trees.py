"""The n-gram drafter's trees through the round machine: the text is the target's, in fewer rounds.

The drafter is the real one, with its core; the target is a function of the last tokens, so that
what it says repeats. Every answer comes at once. Beside its verifier a drafter hears of verdicts
itself, be it before the orchestrator or after it, and of those that the orchestrator never gets.
"""

from collections import deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from services.drafter.core import DrafterCore
from services.runtime.tree_handover import Handover

from orchestrator.core import events, rounds
from orchestrator.core.pacing import make_policy
from orchestrator.core.state import State
from orchestrator.steering.config import Phase, SessionConfig
from services.contract import types as t
from services.contract.top_rows import pack
from services.drafter.methods.ngram.ngram import NgramDrafter
from tests.tries import tries

Target = Callable[[Sequence[int]], int]
MOST = 60


def verdict_of(target: Target, text: Sequence[int], block: t.Verify) -> t.Verdict:
    """What a verifier says of a block behind `text`."""
    parents = block.tree.parents or tuple(range(-1, len(block.tree) - 1))
    path, said = [], [target(text)]
    while True:
        here = path[-1] if path else -1
        below = [node for node, parent in enumerate(parents) if parent == here]
        taken = [node for node in below if block.tree.token_ids[node] == said[-1]]
        if not taken:
            break
        path.append(taken[0])
        said.append(target([*text, *said]))
    nodes = () if block.tree.is_chain else tuple(path)
    return t.Verdict(
        block.session, block.epoch, block.round, block.base_len, tuple(said), len(path),
        not below, accepted_nodes=nodes, mode=t.VerifyMode.GREEDY, verify_ms=30.0,
        batch_rows=1 + len(block.tree), batch_size=1,
        top_rows=rows_of(target, text, block, parents),
    )  # fmt: skip


def rows_of(target: Target, text: Sequence[int], block: t.Verify, parents: Sequence[int]) -> bytes:
    """What a verifier says at each row of a draft: the target's token, and another one."""
    paths: list[list[int]] = []
    for token, parent in zip(block.tree.token_ids, parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else text), token])
    if not paths:
        return b""
    rows = [list(text), *paths]
    return pack([row[-1] for row in rows], [(said := target(row), (said + 1) % 10) for row in rows])


class World:
    """One session with a real drafter core, until it ends.

    `losses`: the blocks with which the drafter is lost. `hears`: whether the drafter hears of the
    verdict of each block (from the last on: of all others, too), and if its draft overtakes it;
    None: it hears of none. `unsaid`: the blocks of which it alone hears: the verifier is lost.
    `told`: whether the commits that tell of verdicts come to it.
    """

    def __init__(
        self,
        target: Target,
        prompt: tuple[int, ...],
        losses: Sequence[int] = (),
        hears: Sequence[bool | None] = (None,),
        unsaid: Sequence[int] = (),
        told: bool = True,
    ) -> None:
        config = SessionConfig(
            "s", prompt, t.VerifyMode.GREEDY, t.ResolvedSampling(temperature=0.0, max_tokens=MOST),
            seed=1, method="ngram", window=8, num_candidates=8, estimated=True, vocab_size=50,
            top_rows=2,
        )  # fmt: skip
        self.state: State = rounds.new_session(
            config, make_policy("thompson", 8, trees=True, most_nodes=12)
        )
        self.target, self.prompt, self.now = target, prompt, 0.0
        self.losses, self.unsaid, self.hears = frozenset(losses), frozenset(unsaid), hears
        self.handover = Handover()
        self.told = told
        self.waiting: deque[events.Event] = deque([events.Begin(0.0)])
        self.sent = self.drafts = self.failures = 0
        self.core = self._core()

    def _core(self) -> DrafterCore:
        drafters = {"ngram": NgramDrafter()}
        return DrafterCore(drafters, emit=self._heard, worker_id="d", handover=self.handover)

    def _heard(self, link: int, event: object) -> None:
        self.drafts += isinstance(event, t.Draft)
        if isinstance(event, t.Draft):
            self.waiting.append(events.DraftArrived(self.now, "d", event))
        elif isinstance(event, t.DraftOpened):
            self.waiting.append(events.WorkerOpened(self.now, t.Role.DRAFTER, "d", event.epoch))
        self.failures += isinstance(event, t.SessionFailed)

    def run(self) -> tuple[int, ...]:
        for role, name in ((t.Role.VERIFIER, "v"), (t.Role.DRAFTER, "d")):
            self.waiting.append(events.WorkerAttached(0.0, role, name))
        for _ in range(40 * MOST):
            if self.state.phase in (Phase.DONE, Phase.FINISHING):
                break
            self._turn()
        return self.state.committed

    def _turn(self) -> None:
        self.now += 0.001
        event = self.waiting.popleft() if self.waiting else events.Tick(self.now)
        self.state, actions = rounds.step(self.state, event)
        for action in actions:
            self._perform(action)
        while self.core.step():
            pass

    def _perform(self, action: object) -> None:
        match action:
            case events.OpenOnWorker(worker, message) if isinstance(message, t.OpenDraft):
                self.core.handle(0, message)
            case events.OpenOnWorker(worker, message):
                assert message.top_rows == 2
                self.waiting.append(
                    events.WorkerOpened(self.now, t.Role.VERIFIER, worker, message.epoch)
                )
            case events.SendToDrafter(_, message):
                if self.told or not isinstance(message, t.CommitDraft):
                    self.core.handle(0, message)
            case events.SendVerify(_, block, _):
                self._verify(block)
            case events.Persist(commit):
                self.waiting.append(events.Persisted(self.now, commit.record.round))

    def _verify(self, block: t.Verify) -> None:
        self.sent += 1
        verdict = verdict_of(self.target, [*self.prompt, *self.state.committed], block)
        overtakes = self.hears[min(self.sent, len(self.hears)) - 1]
        if overtakes is not None:
            self.handover.verdicts.append(verdict)
        if overtakes:
            while self.core.step():
                pass
        if self.sent in self.unsaid:
            self.waiting.append(events.WorkerLost(self.now, t.Role.VERIFIER, "v", "gone"))
            self.waiting.append(events.WorkerAttached(self.now + 10, t.Role.VERIFIER, "v"))
        else:
            self.waiting.append(events.VerdictArrived(self.now, "v", verdict))
        if self.sent in self.losses:
            self.core = self._core()
            self.waiting.append(events.WorkerLost(self.now, t.Role.DRAFTER, "d", "gone"))
            self.waiting.append(events.WorkerAttached(self.now + 10, t.Role.DRAFTER, "d"))


def text_of(target: Target, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """The `count` tokens that the target alone would say."""
    said: list[int] = []
    while len(said) < count:
        said.append(target([*prompt, *said]))
    return tuple(said)


def follows(table: Sequence[int]) -> Target:
    return lambda text: table[(text[-1] + 3 * text[-2]) % len(table)]


@tries(60)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.lists(st.integers(0, 9), min_size=2, max_size=12).map(tuple),
    st.lists(st.integers(1, 20), max_size=3),
    st.lists(st.sampled_from((None, False, True)), min_size=1, max_size=8),
    st.lists(st.integers(1, 20), max_size=2),
)
def test_the_text_is_the_targets_whatever_is_drafted_heard_and_lost(
    table: list[int],
    prompt: tuple[int, ...],
    losses: list[int],
    hears: list[bool | None],
    unsaid: list[int],
) -> None:
    world, target = World(follows(table), prompt, losses, hears, unsaid), follows(table)
    assert world.run() == text_of(target, prompt, MOST)
    assert losses or not world.failures


def test_a_text_that_repeats_takes_few_rounds() -> None:
    world = World(follows([1, 2, 3, 4, 5]), (1, 2))
    world.run()
    assert world.sent < MOST / 2
    assert world.state.epoch <= 2 * world.sent
    assert world.state.resyncs == 0


def test_drafts_are_never_taken_twice() -> None:
    world = World(follows([7, 1, 4, 2, 9, 3]), (3, 1, 4, 1, 5))
    world.run()
    assert (world.state.drafter_failures, world.state.verifier_failures) == (0, 0)


@pytest.mark.parametrize("overtakes", [False, True], ids=["after the verdict", "before it"])
def test_a_drafter_that_hears_the_verdicts_drafts_the_same_and_once(overtakes: bool) -> None:
    told = World(follows([7, 1, 4, 2, 9, 3]), (3, 1, 4, 1, 5))
    hears = World(follows([7, 1, 4, 2, 9, 3]), (3, 1, 4, 1, 5), hears=(overtakes,))
    assert (hears.run(), hears.sent, hears.drafts) == (told.run(), told.sent, told.drafts)
    assert (hears.state.resyncs, hears.failures, hears.state.drafter_failures) == (0, 0, 0)


@pytest.mark.parametrize("overtakes", [False, True], ids=["after the verdict", "before it"])
def test_what_was_heard_needs_no_commit(overtakes: bool) -> None:
    hears = World(follows([1, 2, 3, 4, 5]), (1, 2), hears=(overtakes,), told=False)
    deaf = World(follows([1, 2, 3, 4, 5]), (1, 2), told=False)
    assert hears.run() == deaf.run()
    assert hears.sent < MOST / 2 < deaf.sent


@pytest.mark.parametrize("broken", [b"1", b"\0" * 12 * 100])
def test_rows_that_are_none_are_kept_from_the_drafter_and_do_no_harm(broken: bytes) -> None:
    target = follows([7, 1, 4, 2, 9, 3])
    world, sound = World(target, (3, 1, 4, 1, 5)), World(target, (3, 1, 4, 1, 5))
    sound.run()
    told: list[bytes] = []
    verify, handle = world._verify, world.core.handle
    world.core.handle = lambda link, command, at=0.0: (  # type: ignore[method-assign]
        told.append(getattr(command, "top_rows", 0) or b""),
        handle(link, command, at),
    )[1]

    def breaks(block: t.Verify) -> None:
        verify(block)
        event = world.waiting.pop()
        assert isinstance(event, events.VerdictArrived)
        verdict = event.verdict._replace(top_rows=broken if len(block.tree) else b"")
        world.waiting.append(events.VerdictArrived(event.at, event.worker, verdict))

    world._verify = breaks  # type: ignore[method-assign]
    assert world.run() == sound.state.committed
    assert broken not in told
    assert world.state.verifier_failures == 0
