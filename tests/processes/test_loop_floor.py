"""What the loop costs, held against the least loop there can be, in one run of real processes."""

import asyncio

import pytest

from bench.loop_floor.serving import FLOOR, FLOOR_DRAFTS
from bench.options import NO_DRAFTS, PLAIN
from bench.runner import CLIENT, Trial, run_schedule
from bench.sections import Section, sections_of
from bench.synthetic.crowds import OURS, STEPS, crowds
from bench.synthetic.scenario import Worlds, parse_times
from bench.synthetic.serving import Way, served

pytestmark = pytest.mark.processes

TIMES = "plain_ms=6.2,verify_ms=6.6,draft_ms=1.0,agreement=0.7,row_ms=0.012,session_ms=0.045"
LEAST = {1: 0.5, 8: 0.3}
"""Of the least loop's tokens a second, by sessions. Two cores that six others want: 0.87, 0.70."""


def test_plain_decoding_keeps_its_share_of_the_least_loop_alone_and_in_a_crowd():
    spec, trials = parse_times(TIMES), list[Trial]()
    worlds = Worlds((), 3, tuple(LEAST), {"max_tokens": 48, "temperature": 0.0})

    async def measure() -> list[Section]:
        way = Way(PLAIN, options=NO_DRAFTS)
        async with served([way], spec, lambda one: one, lambda _: None) as ways:
            await run_schedule(ways, worlds, trials.append, lambda _: None)
            return sections_of(trials, ways, (), PLAIN, PLAIN)

    found = {(one.sessions, one.way): one for one in crowds(asyncio.run(measure()), spec)}
    assert {way for _, way in found} == {PLAIN, FLOOR, FLOOR_DRAFTS, STEPS}
    for sessions, least in LEAST.items():
        plain, floor = found[sessions, PLAIN], found[sessions, FLOOR]
        assert plain.of_floor > least
        assert {*plain.cpu_ms} == {*floor.cpu_ms} == {*OURS, CLIENT}
        assert plain.ours > floor.ours > 0
        assert floor.tokens_per_second <= found[sessions, STEPS].tokens_per_second
    assert all(one.tokens == 48 for trial in trials for one in trial.results)
