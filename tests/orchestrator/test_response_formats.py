"""Response formats of requests: compiled beside the loop, once, in turns, within bounds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from concurrent.futures import Future
from contextlib import closing

import pytest

from orchestrator.frontdoor.response_formats import COSTLY_KEPT, COSTLY_SECONDS, ResponseFormats
from services.contract.errors import Draining, FormatTooCostly, InvalidRequest, Overloaded
from services.contract.types import FormatKind, ResponseFormat
from services.grammar.vetting import MOST_OF_ONE, MOST_WAITING, Bounds, Vetted, Vetting

MANY_PATTERNS = json.dumps(
    {
        "type": "object",
        "patternProperties": {f"^{1000 + i}_.{{1,9}}$": {"type": "string"} for i in range(400)},
    }
)
SMALL_AND_ENDLESS = json.dumps({"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(24)]})


def schema(text: str) -> ResponseFormat:
    return ResponseFormat(FormatKind.JSON_SCHEMA, (text,))


def regex(text: str) -> ResponseFormat:
    return ResponseFormat(FormatKind.REGEX, (text,))


async def test_a_format_that_took_too_much_is_refused_to_that_tenant_for_a_while(vetting):
    now = 0.0
    forms = ResponseFormats(vetting, clock=lambda: now)
    await forms.require(regex("a+"), "t")
    forms.blame(regex("a+"), "t")
    for _ in range(2):
        with pytest.raises(FormatTooCostly, match=r"sampling\.regex.*600 s"):
            await forms.require(regex("a+"), "t")
    await forms.require(regex("a+"), "another")
    await forms.require(regex("b+"), "t")
    now = COSTLY_SECONDS
    await forms.require(regex("a+"), "t")


def test_no_more_formats_are_remembered_as_costly_than_there_is_room_for():
    forms = ResponseFormats()
    for number in range(COSTLY_KEPT + 10):
        forms.blame(regex(f"a{number}"), "t")
    assert len(forms._costly) == COSTLY_KEPT
    forms.close()


class Slow:
    """In place of `Vetting`: the test says when a format is compiled."""

    def __init__(self) -> None:
        self.asked: list[tuple[ResponseFormat, str, Future[Vetted]]] = []

    def submit(self, wanted: ResponseFormat, owner: str = "", special=()) -> Future[Vetted]:
        answer: Future[Vetted] = Future()
        self.asked.append((wanted, owner, answer))
        return answer


@pytest.fixture
def vetting():
    with closing(Vetting(Bounds(seconds=0.5, memory=128 << 20, patience=250))) as made:
        yield made


@pytest.mark.parametrize("text", [MANY_PATTERNS, SMALL_AND_ENDLESS])
async def test_a_schema_without_end_costs_its_bound_and_the_loop_nothing(vetting, text):
    assert len(text) < 16_384
    forms, turns = ResponseFormats(vetting), 0

    async def watch() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.005)
            turns += 1

    watching = asyncio.create_task(watch())
    with pytest.raises(InvalidRequest, match=r"0\.5 s of CPU|128 MiB") as refused:
        await forms.require(schema(text), "a")
    assert refused.value.field == "sampling.json_schema"
    watching.cancel()
    assert turns > 3, "the loop stood still"
    # Known by now.
    vetting.close()
    with pytest.raises(InvalidRequest):
        await forms.require(schema(text), "b")


def test_what_takes_too_much_memory_is_refused_by_that_name():
    with closing(Vetting(Bounds(seconds=30, memory=64 << 20, patience=250))) as vetting:
        assert "64 MiB" in vetting.submit(schema(SMALL_AND_ENDLESS)).result().complaint
        assert vetting.submit(regex("a+")).result().complaint == ""


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (schema("[" * 60_000), "nested too deep"),
        (schema('{"$ref": "#"}'), "allows no output"),
        (regex(r"[^\s\S]"), "allows no output"),
        (regex("(" * 2_000 + "a" + ")" * 2_000), "regex"),
    ],
)
def test_a_format_that_nothing_fulfils_is_told_so(vetting, wanted, why):
    assert why in vetting.submit(wanted).result().complaint


@pytest.mark.parametrize(
    "wanted",
    [
        ResponseFormat(FormatKind.CHOICE, tuple(f"{i:04d}{'x' * 12}" for i in range(1024))),
        regex("[a-z]{1,4000}"),
        schema(json.dumps({"enum": list(range(8_000))})),
    ],
)
def test_the_largest_of_the_usual_formats_fit_the_default_bounds(wanted):
    with closing(Vetting(Bounds(patience=250))) as vetting:
        assert vetting.submit(wanted).result().complaint == ""


async def test_callers_of_one_format_wait_for_one_answer():
    slow = Slow()
    forms = ResponseFormats(slow)
    waiting = [asyncio.create_task(forms.require(regex("a"), "t")) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    [(_, owner, answer)] = slow.asked
    assert owner == "t"
    assert not answer.cancelled()
    answer.set_result(Vetted(""))
    assert await asyncio.gather(*waiting[1:]) == [None] * 49
    await forms.require(regex("a"), "another")
    assert len(slow.asked) == 1


async def test_a_format_that_nobody_waits_for_any_more_is_not_compiled():
    slow = Slow()
    forms = ResponseFormats(slow)
    gone = asyncio.create_task(forms.require(regex("a"), "t"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert slow.asked[0][2].cancelled()
    again = asyncio.create_task(forms.require(regex("a"), "t"))
    await asyncio.sleep(0)
    slow.asked[1][2].set_result(Vetted(""))
    await again


async def test_an_answer_that_comes_after_its_caller_has_left_is_kept():
    slow = Slow()
    forms = ResponseFormats(slow)
    gone = asyncio.create_task(forms.require(regex("a"), "t"))
    await asyncio.sleep(0)
    answer = slow.asked[0][2]
    assert answer.set_running_or_notify_cancel()
    gone.cancel()
    await asyncio.wait([gone])
    answer.set_result(Vetted("it is bad"))
    await asyncio.sleep(0.01)
    with pytest.raises(InvalidRequest, match="it is bad"):
        await forms.require(regex("a"), "t")
    assert len(slow.asked) == 1


def test_one_owner_keeps_no_other_from_a_child():
    with closing(Vetting(Bounds(seconds=250, memory=256 << 20, patience=250))) as vetting:
        bad = [vetting.submit(schema(MANY_PATTERNS + " " * i), "bad") for i in range(8)]
        good = [vetting.submit(regex("a" * (i + 1)), "good") for i in range(8)]
        assert all(one.result(timeout=60).complaint == "" for one in good)
        assert not any(one.done() for one in bad)
    assert all(isinstance(one.exception(timeout=60), Draining) for one in bad)


def fill(vetting: Vetting, count: int, owner) -> None:
    for number in range(count):
        vetting.submit(regex("a" * (number + 1)), owner(number))


def test_the_line_has_an_end_for_each_owner_and_for_all():
    with closing(Vetting(Bounds(seconds=250, patience=250), processes=1)) as vetting:
        vetting.submit(schema(MANY_PATTERNS))
        while not vetting.pids:
            time.sleep(0.01)
        fill(vetting, MOST_OF_ONE, lambda _: "greedy")
        with pytest.raises(Overloaded) as full:
            vetting.submit(regex("b"), "greedy")
        assert full.value.retry_after > 0
        fill(vetting, MOST_WAITING - MOST_OF_ONE, lambda number: f"owner {number}")
        with pytest.raises(Overloaded):
            vetting.submit(regex("b"), "late")


def test_a_child_that_dies_is_replaced_and_its_format_is_not_blamed(vetting):
    assert vetting.submit(regex("a")).result().complaint == ""
    [pid] = vetting.pids
    job = vetting.submit(schema(MANY_PATTERNS))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Overloaded):
        job.result(timeout=60)
    assert vetting.submit(regex("b")).result().complaint == ""
    assert vetting.pids != [pid]


def test_where_no_process_can_begin_the_format_is_not_blamed(vetting, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere")
    with pytest.raises(Overloaded):
        vetting.submit(regex("a")).result(timeout=60)
    monkeypatch.undo()
    assert vetting.submit(regex("a")).result(timeout=60).complaint == ""


def test_closing_ends_the_children_while_they_work():
    vetting = Vetting(Bounds(seconds=600, patience=600))
    job = vetting.submit(schema(MANY_PATTERNS))
    while not vetting.pids:
        time.sleep(0.01)
    pids = vetting.pids
    vetting.close()
    with pytest.raises(Draining):
        job.result(timeout=60)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(Draining):
        vetting.submit(regex("a"))
