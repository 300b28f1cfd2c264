"""The verifier waits a moment for sessions that are about to come back, and only then."""

from heapq import heappop, heappush

import pytest

from services.contract.types import CloseVerify, Verdict
from services.scheduling.step_time import StepTimeModel
from services.verifier.gathering import Gathering, Habit
from tests.services.verifier_bench import Table, Timed, block, opening

PROMPT = (1, 2, 3)


class Loop:
    """Plain sessions around a core, in simulated time, as host and orchestrator serve them.

    A block comes `back[session]` milliseconds after its verdict left; a list of them is gone
    through again and again. `heard`: what came when; `waits`: seconds waited before each step.
    """

    def __init__(self, back, *, base_ms=20.0, row_ms=1.0, **options):
        self.clock = self.engine = Timed(base_ms, row_ms)
        self.table = Table(self.engine, clock=self.engine.clock, **options)
        self._back = {name: list(ms) if isinstance(ms, list) else [ms] for name, ms in back.items()}
        self._length = dict.fromkeys(back, 0)
        self._coming = []
        self.steps = []
        for name in back:
            self.table.opened(session=name, prompt=PROMPT, max_tokens=400)
        self.began = self.clock.now

    def start(self, groups):
        """Let the first blocks of each group come, one group during the step of the one before."""
        for late, names in enumerate(groups):
            for name in names:
                heappush(self._coming, (self.clock.now + 1e-3 * late, name))

    def run(self, steps):
        """So many steps; the sessions in each."""
        before = len(self.steps)
        waited = 0.0
        while len(self.steps) < before + steps:
            self._absorb()
            patience = self.table.core.patience()
            if patience == 0 and self.table.core.step():
                self._answer(waited)
                waited = 0.0
                continue
            waited += self._pass(patience)
        return [len(names) for names, _ in self.steps[before:]]

    def waited(self, steps):
        """Milliseconds waited before each of the last steps, with something to do."""
        return [1e3 * waited for _, waited in self.steps[-steps:]]

    def _absorb(self):
        while self._coming and self._coming[0][0] <= self.clock.now:
            arrived, name = heappop(self._coming)
            self._length[name] += 1
            command = block(self._length[name], self._length[name] - 1, session=name)
            self.table.core.handle(1, command, arrived)

    def _pass(self, patience):
        """Let time pass until something comes or the patience ends; how long it waited for more."""
        until = self._coming[0][0] if self._coming else self.clock.now + patience
        if patience:
            until = min(until, self.clock.now + patience)
        spent, self.clock.now = until - self.clock.now, max(until, self.clock.now)
        return spent if patience else 0.0

    def _answer(self, waited):
        verdicts = [event for event in self.table.taken() if isinstance(event, Verdict)]
        for verdict in verdicts:
            ms = self._back[verdict.session]
            due = self.clock.now + 1e-3 * ms[verdict.round % len(ms)]
            heappush(self._coming, (due, verdict.session))
        self.steps.append((frozenset(verdict.session for verdict in verdicts), waited))


def names(count):
    return [f"s{number:02}" for number in range(count)]


def halves(**options):
    """64 sessions that come back within 3 ms, and begin as two halves."""
    each = names(64)
    back = {name: [1.0 + index % 5 / 2, 1.5 + index % 3 / 2] for index, name in enumerate(each)}
    loop = Loop(back, **options)
    loop.start([each[:32], each[32:]])
    return loop


def rate(loop, steps):
    """Verdicts a second of simulated time."""
    began = loop.clock.now
    return sum(loop.run(steps)) / (loop.clock.now - began)


def test_two_halves_that_take_turns_become_one_full_batch():
    loop = halves()
    sizes = loop.run(40)
    assert sizes[:2] == [32, 32]
    assert sizes[-20:] == [64] * 20


@pytest.mark.parametrize("options", [{"gather_ms": 0.0}, {"max_step_tokens": 32}], ids=str)
def test_without_gathering_or_with_full_steps_the_halves_take_turns_for_ever(options):
    loop = halves(**options)
    assert loop.run(40) == [32] * 40
    assert loop.waited(40) == [0.0] * 40


def test_full_batches_serve_more():
    with_it, without = halves(), halves(gather_ms=0.0)
    with_it.run(20), without.run(20)
    assert rate(with_it, 30) > 1.15 * rate(without, 30)


def test_halves_that_hide_a_long_way_back_stay_halves():
    """Together they would leave the verifier idle for longer than a step costs at rest."""
    back = {name: 30.0 + index % 4 for index, name in enumerate(names(64))}
    loop = Loop(back)
    loop.start([names(64)[:10], names(64)[10:]])
    assert 64 not in loop.run(60)
    assert rate(loop, 30) > 64 / (0.030 + 0.084)


def test_no_wait_is_longer_than_the_setting_or_a_quarter_of_a_step():
    loop = halves()
    loop.run(60)
    assert 0.0 < max(loop.waited(60)) <= 5.0 + 1e-6
    short = halves(gather_ms=2.0)
    short.run(60)
    assert max(short.waited(60)) <= 2.0 + 1e-6
    quick = halves(base_ms=8.0, row_ms=0.0)
    quick.run(60)
    assert 0.0 < max(quick.waited(60)) <= 2.0 + 1e-6


@pytest.mark.parametrize("back", [0.1, 3.0, 50.0])
def test_a_session_alone_is_never_kept_waiting(back):
    loop = Loop({"s": back})
    loop.start([["s"]])
    assert loop.run(30) == [1] * 30
    assert loop.waited(30) == [0.0] * 30


def test_sessions_that_take_long_are_not_waited_for():
    back = {"quick": 1.0, "slow": [130.0, 161.0, 190.0], "slower": [311.0, 250.0, 270.0]}
    loop = Loop(back)
    loop.start([["quick", "slow", "slower"]])
    loop.run(100)
    waits = [(steps, waited) for steps, waited in loop.steps if waited]
    assert all("quick" in steps and waited < 0.0016 for steps, waited in waits)


def test_a_session_that_stops_coming_is_waited_for_once():
    loop = Loop({"a": 1.0, "b": [2.0] * 20 + [400.0] * 20})
    loop.start([["a"], ["b"]])
    loop.run(150)
    assert loop.steps[15][0] == {"a", "b"}
    alone = [waited for steps, waited in loop.steps[15:] if steps == {"a"}]
    assert len(alone) > 50
    assert sum(waited > 0 for waited in alone) == 1


def test_it_is_waited_for_again_once_it_is_quick_again():
    loop = Loop({"a": 1.0, "b": [2.0] * 30 + [60.0] + [2.0] * 9})
    loop.start([["a"], ["b"]])
    loop.run(70)
    sizes = loop.run(30)
    assert sizes.count(2) >= 20


def test_one_session_does_not_keep_many_waiting():
    """What the many would lose outweighs what the one gains."""
    many = dict.fromkeys(names(40), 1.0)
    loop = Loop(many | {"late": [4.0, 4.5]})
    loop.start([names(40), ["late"]])
    loop.run(60)
    assert all(
        waited <= 1.0
        for (steps, _), waited in zip(loop.steps, loop.waited(60), strict=True)
        if len(steps) == 40
    )


def test_steps_that_cost_nothing_at_rest_are_not_waited_for():
    """Where a step takes what its rows take, a fuller one saves nothing."""
    loop = halves(base_ms=0.0, row_ms=2.0)
    loop.run(80)
    assert loop.waited(20) == [0.0] * 20


def test_a_prompt_waits_for_blocks_as_blocks_do():
    loop = Loop(dict.fromkeys(names(8), 2.0))
    loop.start([names(8)])
    loop.run(20)
    loop.table.give(opening(session="new", prompt=tuple(range(1, 10)) * 5, max_tokens=9))
    assert loop.table.core.patience() > 0
    loop.run(1)
    steps, waited = loop.steps[-1]
    assert steps == set(names(8))
    assert 0 < waited <= 0.005
    assert loop.engine.forwards[-1].count(1) == 8
    assert max(loop.engine.forwards[-1]) > 1


def waiting_pair():
    """`a` waits for a step, and the core for `b`, which was answered along with it."""
    loop = Loop({"a": 1.0, "b": 3.0})
    loop.start([["a", "b"]])
    loop.run(20)
    loop.clock.now += 1e-3
    loop._absorb()
    assert loop.table.core.patience() > 0
    return loop


@pytest.mark.parametrize("how", ["it came", "it closed", "the link of the waiting one is gone"])
def test_the_wait_ends_when_nobody_is_waited_for(how):
    loop = waiting_pair()
    if how == "it came":
        loop.clock.now += 2e-3
        loop._absorb()
    elif how == "it closed":
        loop.table.give(CloseVerify("b"))
    else:
        loop.table.core.drop_link(1)
        assert not loop.table.core.step()
    assert loop.table.core.patience() == 0.0


def test_the_wait_ends_when_its_time_is_over_though_nobody_came():
    loop = waiting_pair()
    left = loop.table.core.patience()
    loop.clock.now += left / 2
    assert loop.table.core.patience() == pytest.approx(left / 2)
    loop.clock.now += left
    assert loop.table.core.patience() == 0.0


def test_a_block_that_came_during_a_step_counts_from_when_it_came():
    """Without that, two halves would look as if they took a step each to come back."""
    loop = halves(gather_ms=0.0)
    loop.run(10)
    for session in loop.table.core._sessions.values():
        assert 0.001 <= session.habit._usual <= 0.003


# --- what is measured ------------------------------------------------------------


def test_the_line_finds_what_a_step_costs_and_what_a_row_adds():
    line = StepTimeModel()
    for number in range(200):
        rows = 8 + 7 * number % 50
        line = line.add(rows, 0.020 + 0.001 * rows)
    assert line.at(0) == pytest.approx(0.020, rel=0.1)
    assert line.at(100) == pytest.approx(0.120, rel=0.1)


def test_one_long_step_does_not_mislead():
    line = StepTimeModel()
    for number in range(100):
        line = line.add(8 + number % 9, 0.030)
    line = line.add(12, 3.0)
    assert line.at(12) < 0.036


def habit(*back):
    """Of a session that came back after these seconds, and has just been answered, at 100."""
    made = Habit()
    for number, after in enumerate(back):
        made.answered(float(number))
        made.came(number + after, 1)
    made.answered(100.0)
    return made


def test_a_session_is_due_when_it_usually_comes():
    due = habit(*[0.002, 0.003] * 20).due(100.0, 100.005, 0.005)
    assert due == pytest.approx(100.0035)


@pytest.mark.parametrize(
    ("back", "now"),
    [
        ((), 100.0),
        ((0.002,) * 3, 100.0),
        ((0.002,) * 20, 100.01),
        ((0.050,) * 20, 100.0),
        ((0.002,) * 20 + (0.050,), 100.0),
        ((0.001,) * 13 + (0.040,) * 3 + (0.001,), 100.0),
        ((0.001, 0.040) * 20, 100.0),
    ],
    ids=[
        "unknown",
        "hardly known",
        "overdue",
        "slow",
        "late the last time",
        "late lately",
        "never the same",
    ],
)
def test_who_is_not_due(back, now):
    assert habit(*back).due(now, now + 0.005, 0.005) is None


@pytest.mark.parametrize("since_step", [0.001, 0.004, 0.030, 0.060])
def test_it_waits_only_while_the_verifier_was_idle_for_less_than_a_step_costs_at_rest(since_step):
    """Steps of 20 ms and 1 ms a row: 32 sessions wait, 32 more are due in 2 ms."""
    gathering = Gathering(5.0)
    for number in range(200):
        rows = 16 + 7 * number % 50
        gathering.stepped(rows, 0.020 + 0.001 * rows, ended=100.0 - since_step)
    away = [habit(*[since_step + 0.0015] * 16) for _ in range(32)]
    for one in away:
        one.answered(100.0 - since_step)
    patience = gathering.patience(32, 32, away, 100.0)
    assert patience == pytest.approx(0.002 if since_step < 0.018 else 0.0)


def test_a_step_of_prompts_alone_waits_for_whoever_decodes_however_little_is_known():
    """Steps of 20 ms and 1 ms a row; sessions that came too seldom, or late, to be due."""
    gathering = Gathering(50.0)
    for number in range(200):
        rows = 1 + 7 * number % 50
        gathering.stepped(rows, 0.020 + 0.001 * rows, ended=100.0)
    away = [habit(*back) for back in ((), (0.002,) * 20 + (0.050,), (0.001, 0.040) * 20)]
    for one in away:
        one.answered(100.0)
    waits = gathering.patience(1, 20, away, 100.001, blocks=False)
    assert waits == pytest.approx(0.25 * 0.040, abs=0.001)
    assert gathering.patience(1, 20, away, 100.004, blocks=False) == pytest.approx(waits - 0.003)
    assert gathering.patience(1, 20, away, 100.020, blocks=False) == 0.0
    assert gathering.patience(1, 20, away, 100.001) <= 0.0
    gathering.stepped(1, 0.021, ended=102.0)
    assert gathering.patience(1, 20, away, 102.001, blocks=False) == 0.0, "nobody decodes"
    assert gathering.patience(1, 20, [], 102.001, blocks=False) == 0.0
