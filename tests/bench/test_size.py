"""The control plane on virtual time: small clusters, in which all that matters at size happens."""

import asyncio
import json
from contextvars import Context
from dataclasses import replace

import pytest

from research.size import world as simulated
from research.size.__main__ import parser, scenario_of
from research.size.report import report_of, show
from research.size.scenario import Scenario
from research.size.virtual_loop import OWNER, VirtualLoop, context_of
from research.size.workers import Times
from research.size.world import World, simulate
from services.contract.types import Role

SMALL = Scenario(
    sessions=60, verifiers=4, drafters=2, orchestrators=4, seconds=3.0, tokens=8, bursts=1,
    burst_s=0.1, event_at=1.5, killed=0.0,
)  # fmt: skip


@pytest.fixture
def worlds(monkeypatch) -> list[World]:
    """Those that simulations make."""
    made: list[World] = []

    class Kept(World):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(simulated, "World", Kept)
    return made


def test_time_jumps_to_the_next_timer_and_callbacks_keep_their_order():
    loop, seen = VirtualLoop(), []

    async def main() -> float:
        loop.call_later(3600.0, seen.append, "late")
        loop.call_later(60.0, seen.append, "soon")
        await asyncio.sleep(7200.0)
        return loop.time()

    assert loop.run_until_complete(main()) == 7200.0
    assert seen == ["soon", "late"]
    loop.close()


def test_what_a_dead_owner_planned_never_runs_and_cpu_is_counted_by_owner():
    loop, seen = VirtualLoop(), []

    async def work(name: str) -> None:
        while True:
            await asyncio.sleep(1.0)
            seen.append((name, loop.time(), OWNER.get(), sum(range(20_000))))

    async def main() -> None:
        contexts: dict[str, Context] = {name: context_of(name) for name in "ab"}
        tasks = [loop.create_task(work(name), context=contexts[name]) for name in "ab"]
        await asyncio.sleep(2.5)
        loop.dead.add("a")
        await asyncio.sleep(2.0)
        loop.dead.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop.run_until_complete(main())
    assert [(name, at) for name, at, *_ in seen if name == "a"] == [("a", 1.0), ("a", 2.0)]
    assert [(name, at) for name, at, *_ in seen if name == "b"] == [
        ("b", n + 1.0) for n in range(4)
    ]
    assert all(name == owner for name, _, owner, _ in seen)
    assert 0 < loop.cpu["a"] < loop.cpu["b"]
    loop.close()


def test_a_loop_with_nothing_to_wait_for_says_so():
    loop = VirtualLoop()
    with pytest.raises(RuntimeError, match="nothing is planned"):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_sessions_survive_the_death_of_orchestrators_token_for_token(worlds):
    outcome = simulate(replace(SMALL, killed=0.5, times=Times(verify=400.0)))
    heard = outcome.heard
    assert (heard.finished, heard.wrong, heard.refused, dict(heard.failed)) == (60, 0, 0, {})
    assert heard.breaks["Broken"] > 0
    told = json.loads(json.dumps(report_of(outcome)))
    assert told["heard"]["breaks"] == {"Broken": heard.breaks["Broken"]}
    assert "breaks {Broken " in show(told)
    assert outcome.calls["acquire"] >= heard.breaks["Broken"]
    [world] = worlds
    assert sum(one.alive for one in world.orchestrators) == 2


def test_orchestrators_fetch_the_tokenizer_once_and_read_the_registry_only_when_it_changes():
    outcome = simulate(replace(SMALL, sessions=4, verifiers=12, joining=1))
    assert outcome.figures["tokenizer_fetches"] == SMALL.orchestrators
    # Two lists each: at the start, and when one joined; an answer without one has a few bytes.
    lists, entry = 2 * SMALL.orchestrators, 400
    entries = 12 + SMALL.drafters + 1
    assert outcome.figures["answered_bytes"] < 1.5 * lists * entries * 2 * entry


def test_orchestrators_do_not_all_take_the_worker_that_told_of_the_least_load():
    burst = replace(
        SMALL, sessions=240, verifiers=6, drafters=0, in_bursts=1.0, seconds=2.0, burst_s=0.2,
        orchestrators=8, tokens=4, prefixes=240, times=Times(verify=3000.0),
    )  # fmt: skip
    seconds = simulate(burst).seconds
    fullest = max(seconds, key=lambda second: second.mean_on_verifier)
    assert fullest.mean_on_verifier == pytest.approx(40)
    assert fullest.most_on_verifier <= 1.5 * fullest.mean_on_verifier


def test_with_a_subset_each_orchestrator_has_few_links_and_sessions_find_room_beyond_it(worlds):
    full = replace(
        SMALL, verifiers=8, drafters=0, subset=2, sessions=40, in_bursts=1.0, kv_tokens=2000,
        tokens=4, times=Times(verify=800.0),
    )  # fmt: skip
    linked: list[int] = []
    outcome = simulate(
        full,
        lambda: linked.extend(
            len(one.pool.links(Role.VERIFIER)) for one in worlds[0].orchestrators
        ),
    )
    assert linked == [2] * SMALL.orchestrators
    assert (outcome.heard.finished, outcome.heard.wrong) == (40, 0)
    # Six sessions of a verifier's memory: those of a burst need more than the subset.
    assert max(len(one.pool.links(Role.VERIFIER)) for one in worlds[0].orchestrators) > 2


def test_a_resumed_session_goes_back_to_its_verifier_beyond_the_subset():
    away = replace(
        SMALL, verifiers=8, drafters=0, subset=2, sessions=24, killed=0.5, tokens=16, own=2000,
        event_at=2.9, shared=32, prefixes=24, times=Times(verify=400.0, prefill=0.0),
    )  # fmt: skip
    outcome = simulate(away)
    resumed = outcome.calls["acquire"]
    assert resumed > 4
    # Whose prompts nobody else has are cached only where their sessions were: by chance an eighth.
    assert outcome.figures["cached_share"] > 0.5 * resumed / (resumed + away.sessions)


def test_admission_leaves_what_other_orchestrators_hold():
    crowd = replace(
        SMALL, sessions=120, verifiers=2, drafters=0, in_bursts=0.0, kv_tokens=3600, tokens=40,
        seconds=4.0, times=Times(verify=100.0),
    )  # fmt: skip
    outcome = simulate(crowd)
    heard = outcome.heard
    assert heard.finished + heard.refused == 120
    # Two verifiers of ten sessions each: as many may run, and about as many wait. Without the
    # others each of the four orchestrators would let in forty.
    assert max(second.sessions for second in outcome.seconds) <= 60
    assert heard.refused > 0


def test_the_command_reads_a_scenario_and_prints_its_seconds():
    asked = parser().parse_args(["--sessions", "5", "--subset", "3", "--verify-ms", "40"])
    scenario = scenario_of(asked)
    assert (scenario.sessions, scenario.subset, scenario.times.verify) == (5, 3, 40.0)
    printed = show(report_of(simulate(replace(SMALL, sessions=5))))
    assert "CPU most" in printed
    assert "finished 5" in printed


def test_arrivals_are_the_same_each_time_and_come_in_bursts():
    scenario = replace(SMALL, sessions=1000, in_bursts=0.8, bursts=2, burst_s=0.1, seconds=100.0)
    times = list(scenario.arrivals())
    assert times == list(scenario.arrivals()) == sorted(times)
    assert len(times) == 1000
    busiest = max(sum(start <= at < start + 0.1 for at in times) for start in times)
    assert busiest > 300
