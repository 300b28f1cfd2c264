"""Drafts that the verifier takes in its own process: the text is the target's, in any order.

The drafter is the real one, with its core, the handover too; the verifier keeps the rules of its
session (`services/verifier/session.py`) for a target that is a function of the last tokens. What
the orchestrator, the two workers and the store say to each other arrives in order on each way, and
in any order among the ways.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from services.drafter.core import DrafterCore
from services.runtime.tree_handover import Handover
from services.verifier.cutting import shortened

from orchestrator.core import events, rounds
from orchestrator.core.pacing import Estimates, Marginal, RoundCosts
from orchestrator.core.pacing.steps import Steps
from orchestrator.core.state import State
from orchestrator.steering.config import Phase, SessionConfig
from services.contract import types as t
from services.drafter.methods.ngram.ngram import NgramDrafter
from tests.core.test_rounds_small_trees import Target, follows, text_of, verdict_of
from tests.tries import tries

MOST = 40
LIMIT = 4000


def policy(most: int = 12) -> Marginal:
    """One that knows what rounds take, so that it says at once what may be taken."""
    known = Estimates(steps=Steps().add(1, 30.0).add(13, 36.0), costs=RoundCosts(sessions=1.0))
    return replace(Marginal(most, 8, rests=False), learned=known, times=known.rounds_ms(most))


class Verifier:
    """One session's queue; blocks with an allowance take what the drafter left."""

    def __init__(self, target: Target, opening_text: Sequence[int], handover: Handover) -> None:
        self.target, self.handover = target, handover
        self.text, self.start = list(opening_text), 0
        self.queue: deque[t.Verify] = deque()
        self.last: t.Verdict | None = None
        self.epoch = 0

    def send(self, block: t.Verify) -> None:
        self.epoch = max(self.epoch, block.epoch)
        self.queue.append(block)
        if block.allowance is not None:
            self.handover.expect(block.session)

    def step(self) -> t.Verdict:
        """The next block's verdict."""
        block, taken = self.queue.popleft(), None
        if block.allowance is not None:
            taken = self.handover.take(block.session, self.text, block.allowance, 16)
            taken = shortened(taken, MOST - self.output - 1)
            block = block._replace(tree=taken.tree, base_len=self.output)
        if not self._fits(block):
            return t.Verdict(
                block.session, block.epoch, block.round, block.base_len, discarded=True
            )
        verdict = verdict_of(self.target, self.text, block)._replace(taken=taken, top_rows=b"")
        self.text += verdict.token_ids
        self.last = verdict
        self.handover.verdicts.append(verdict)
        return verdict

    @property
    def output(self) -> int:
        return len(self.text) - self.start

    def _fits(self, block: t.Verify) -> bool:
        stale = block.epoch < self.epoch and block.allowance is None
        if stale or self.output >= MOST or block.base_len != self.output:
            return False
        if not block.extends_round:
            return True
        return self.last is not None and self.last.round == block.extends_round


class World:
    """One session; `order` says which way delivers next."""

    def __init__(self, target: Target, prompt: tuple[int, ...], order: Sequence[int]) -> None:
        config = SessionConfig(
            "s", prompt, t.VerifyMode.GREEDY, t.ResolvedSampling(temperature=0.0, max_tokens=MOST),
            seed=1, method="ngram", window=8, num_candidates=8, estimated=True, vocab_size=50,
            plain_ahead=True,
        )  # fmt: skip
        self.state: State = rounds.new_session(config, policy())
        self.target, self.prompt, self.now = target, prompt, 0.0
        self.order = cycle(order or [0])
        self.handover = Handover()
        drafters = {"ngram": NgramDrafter()}
        self.core = DrafterCore(drafters, emit=self._drafted, worker_id="d", handover=self.handover)
        self.verifier: Verifier | None = None
        self.to_verifier: deque[object] = deque()
        self.to_drafter: deque[object] = deque()
        self.from_verifier: deque[events.Event] = deque()
        self.from_drafter: deque[events.Event] = deque()
        self.stored: deque[events.Event] = deque()
        self.verdicts: list[t.Verdict] = []
        self.failures = self.drafts = 0
        self.on_step: Callable[..., None] = lambda *_: None

    def run(self, most: int = LIMIT) -> tuple[int, ...]:
        self.feed(events.Begin(0.0))
        self.attach(t.Role.VERIFIER, "v")
        self.attach(t.Role.DRAFTER, "d", beside="v")
        for _ in range(most):
            if self.state.phase in (Phase.DONE, Phase.FINISHING):
                break
            self.turn()
        return self.state.committed

    def attach(self, role: t.Role, worker: str, beside: str = "") -> None:
        self.feed(events.WorkerAttached(self.now, role, worker, beside=beside))

    def turn(self) -> None:
        self.now += 0.001
        ways = (self.to_verifier, self.to_drafter, self.from_verifier, self.from_drafter)
        busy: list[object] = [way for way in (*ways, self.stored) if way]
        if self.verifier is not None and self.verifier.queue:
            busy.append(self.verifier)
        if not busy:
            self.now += 0.05
            self.feed(events.Tick(self.now))
            return
        self._deliver(busy[next(self.order) % len(busy)])

    def _deliver(self, way: object) -> None:
        if isinstance(way, Verifier):
            verdict = way.step()
            self.verdicts.append(verdict)
            self.from_verifier.append(events.VerdictArrived(self.now, "v", verdict))
            self.draft()
        elif way is self.to_verifier:
            self._at_verifier(self.to_verifier.popleft())
        elif way is self.to_drafter:
            self.core.handle(0, self.to_drafter.popleft())  # type: ignore[arg-type]
            self.draft()
        else:
            assert isinstance(way, deque)
            self.feed(replace(way.popleft(), at=self.now))

    def _at_verifier(self, command: object) -> None:
        if isinstance(command, t.Verify):
            if self.verifier is not None:
                self.verifier.send(command)
            return
        assert not isinstance(command, t.Verify)
        text = [*command.prompt, *command.committed]  # type: ignore[attr-defined]
        self.verifier = Verifier(self.target, text, self.handover)
        self.verifier.start = len(self.prompt)
        opened = events.WorkerOpened(self.now, t.Role.VERIFIER, "v", command.epoch)  # type: ignore[attr-defined]
        self.from_verifier.append(opened)

    def draft(self) -> None:
        while self.core.step():
            pass

    def _drafted(self, link: int, event: object) -> None:
        self.failures += isinstance(event, t.SessionFailed)
        self.drafts += isinstance(event, t.Draft)
        if isinstance(event, t.Draft):
            self.from_drafter.append(events.DraftArrived(self.now, "d", event))
        elif isinstance(event, t.DraftOpened):
            self.from_drafter.append(
                events.WorkerOpened(self.now, t.Role.DRAFTER, "d", event.epoch)
            )

    def feed(self, event: events.Event) -> None:
        self.state, actions = rounds.step(self.state, event)
        self.on_step(event, actions, self.state)
        for action in actions:
            match action:
                case events.OpenOnWorker(_, message) if isinstance(message, t.OpenDraft):
                    self.to_drafter.append(message)
                case events.OpenOnWorker(_, message):
                    self.to_verifier.append(message)
                case events.SendToDrafter(_, message):
                    self.to_drafter.append(message)
                case events.SendVerify(_, block, _):
                    self.to_verifier.append(block)
                case events.Release(t.Role.DRAFTER, _):
                    self.to_drafter.append(t.CloseDraft("s"))
                case events.Persist(commit):
                    self.stored.append(events.Persisted(self.now, commit.record.round))

    @property
    def taken(self) -> list[t.TakenDraft]:
        """What blocks with an allowance took."""
        return [verdict.taken for verdict in self.verdicts if verdict.taken is not None]


TABLES = st.lists(st.integers(0, 9), min_size=1, max_size=12)
PROMPTS = st.lists(st.integers(0, 9), min_size=2, max_size=12).map(tuple)
ORDERS = st.lists(st.integers(0, 59), max_size=40)


@tries(150)
@given(TABLES, PROMPTS, ORDERS)
def test_the_text_is_the_targets_in_any_order(table, prompt, order):
    world = World(follows(table), prompt, order)
    assert world.run() == text_of(world.target, prompt, MOST)
    state = world.state
    assert (world.failures, state.drafter_failures, state.drafter_losses) == (0, 0, 0)
    assert (state.verifier_failures, state.verifier_losses, state.resyncs) == (0, 0, 0)


@tries(80)
@given(TABLES, PROMPTS, ORDERS, st.lists(st.tuples(st.integers(1, 120), st.booleans()), max_size=4))
def test_workers_that_are_lost_meanwhile_cost_no_token(table, prompt, order, losses):
    """Of the two in one process either is lost, and comes back beside the other or not."""
    world = World(follows(table), prompt, order)
    due = dict(losses)
    turn, turns = world.turn, iter(range(1, LIMIT + 1))

    def with_losses() -> None:
        turn()
        if (both := due.get(next(turns))) is None or world.state.phase is not Phase.RUNNING:
            return
        role, worker = (t.Role.VERIFIER, "v") if both else (t.Role.DRAFTER, "d")
        if both:
            world.verifier = None
            world.to_verifier.clear()
            world.from_verifier.clear()
        else:
            world.to_drafter.clear()
            world.from_drafter.clear()
            world.core.drop_link(0)
        world.feed(events.WorkerLost(world.now, role, worker, "gone"))
        world.now += 10.0
        world.attach(role, worker, beside="" if both else "v")

    world.turn = with_losses  # type: ignore[method-assign]
    assert world.run() == text_of(world.target, prompt, MOST)
    assert world.state.verifier_failures == 0


def test_once_rounds_are_known_no_draft_comes_to_the_orchestrator() -> None:
    """In turn: all that is said has arrived before the verifier's next step."""
    world = World(follows([1, 2, 3, 4, 5]), (1, 2), [0])
    assert world.run() == text_of(world.target, (1, 2), MOST)
    used = [len(taken.tree) for taken in world.taken]
    assert len(used) > 5
    assert sum(used) > 10
    assert world.drafts <= 2
    apart = elsewhere()
    apart.run()
    assert len(world.verdicts) <= len(apart.verdicts) + 2 < MOST - 5


class Missed(deque[t.Verdict]):
    """What is left for a drafter that misses the first `left_out` of it."""

    left_out = 9

    def append(self, verdict: t.Verdict) -> None:
        self.left_out -= 1
        if self.left_out < 0:
            super().append(verdict)


@pytest.mark.parametrize("missed", [False, True])
def test_a_drafter_beside_is_told_of_some_rounds_at_a_time_and_has_what_it_missed(missed: bool):
    world = World(follows([1, 2, 3, 4, 5, 6, 0, 7, 7, 8]), (1, 2), [0])
    told: list[t.CommitDraft] = []
    world.on_step = lambda _, actions, __: told.extend(
        [
            action.message
            for action in actions
            if isinstance(action, events.SendToDrafter)
            and isinstance(action.message, t.CommitDraft)
        ]
    )
    if missed:
        world.handover.verdicts = Missed()
    assert world.run() == text_of(world.target, (1, 2), MOST)
    assert [one.base_len for one in told[1:]] == list(
        accumulate([len(one.token_ids) for one in told[:-1]], initial=told[0].base_len)
    )[1:]
    assert len(told) < len(world.taken) // 2
    assert sum(len(taken.tree) for taken in world.taken) > 10
    assert (world.failures, world.state.resyncs) == (0, 0)


def test_nothing_is_taken_where_the_drafter_is_elsewhere() -> None:
    world = elsewhere()
    assert world.run() == text_of(world.target, (1, 2), MOST)
    assert not world.taken


def elsewhere() -> World:
    """Its drafter is not in the verifier's process."""
    world = World(follows([1, 2, 3, 4, 5]), (1, 2), [0])
    world.attach = lambda role, worker, beside="": World.attach(world, role, worker)  # type: ignore[method-assign]
    return world


TREE = t.DraftTree((1, 2), (-1, -1))
LIES = {
    "without being asked": t.TakenDraft(),
    "beyond the vocabulary": t.TakenDraft(t.DraftTree((50,)), (0.5,), b"\1"),
    "with chances that rise": t.TakenDraft(TREE, (0.2, 0.3), b"\1\1"),
    "without chances": t.TakenDraft(TREE),
    "with parents behind their children": t.TakenDraft(t.DraftTree((1, 2), (1, -1)), (0.3, 0.2)),
    "larger than may be": t.TakenDraft(t.DraftTree((1,) * 17), (0.5,) * 17),
    "with too many sources": t.TakenDraft(t.DraftTree((1,)), (0.5,), b"\1\1"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_verifier_that_says_it_took_what_it_cannot_have_is_left(lie: t.TakenDraft) -> None:
    world = World(follows([1, 2, 3, 4, 5]), (1, 2), [0])
    asked = lie != LIES["without being asked"]
    while not any((verdict.taken is not None) == asked for verdict in world.verdicts):
        world.run(1) if not world.verdicts and world.now == 0.0 else world.turn()
    event = world.from_verifier.pop()
    assert isinstance(event, events.VerdictArrived)
    world.from_verifier.append(replace(event, verdict=event.verdict._replace(taken=lie)))
    while world.from_verifier and not world.state.verifier_failures:
        world.turn()
    assert world.state.verifier_failures == 1
