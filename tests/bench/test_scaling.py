"""Autoscaling: each documented rule by itself, and the shipped scalers on what was recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from research.scaling.__main__ import main
from research.scaling.autoscaler import Bounds, Memory, Noted, decide, limited, propose, stabilised
from research.scaling.crowd import Phase, parse_phases
from research.scaling.manifests import (
    Fallback,
    MetricType,
    Policy,
    PolicyType,
    Rules,
    ScaledObject,
    Trigger,
    read_scalers,
)
from research.scaling.recording import Recording, Signal, read_recording, write_recording
from research.scaling.replay import replay, table
from research.scaling.scaler import Scaled, tick
from services.contract.errors import StartError

RECORDED = Path(__file__).parents[2] / "research" / "data" / "scaling.json"
VALUE, AVERAGE = MetricType.VALUE, MetricType.AVERAGE_VALUE
PODS, PERCENT = PolicyType.PODS, PolicyType.PERCENT
AT_ONCE = Rules(0, (Policy(PERCENT, 900, 15), Policy(PODS, 9, 15)))
GONE = Rules(0, (Policy(PERCENT, 100, 15),))


def bounds(up=AT_ONCE, down=GONE, least=1, most=100):
    return Bounds(least, most, up, down)


# --- what a metric proposes -------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "value", "target", "current", "proposed"),
    [
        (AVERAGE, 300, 100, 1, 3),
        (AVERAGE, 301, 100, 1, 4),
        (AVERAGE, 0, 100, 5, 0),
        (AVERAGE, 0.0004, 100, 5, 0),
        (VALUE, 150, 100, 4, 6),
        (VALUE, 151, 100, 4, 7),
        (VALUE, 25, 100, 4, 1),
        (VALUE, 0.3, 0.1, 1, 3),
    ],
)
def test_a_metric_proposes_its_value_over_its_target_rounded_up(
    type, value, target, current, proposed
):
    assert propose(type, value, target, current) == proposed


@pytest.mark.parametrize(
    ("type", "value", "current", "proposed"),
    [
        (AVERAGE, 439, 4, 4),
        (AVERAGE, 441, 4, 5),
        (AVERAGE, 361, 4, 4),
        (AVERAGE, 300, 4, 3),
        (VALUE, 109, 10, 10),
        (VALUE, 111, 10, 12),
        (VALUE, 91, 10, 10),
        (VALUE, 89, 10, 9),
    ],
)
def test_within_a_tenth_of_the_target_it_proposes_what_there_is(type, value, current, proposed):
    assert propose(type, value, 100, current) == proposed


def test_the_highest_proposal_counts():
    assert decide(bounds(), Memory(), 0, 2, [3, 5, 1])[0] == 5


def test_nothing_is_scaled_down_while_a_metric_cannot_be_read():
    assert decide(bounds(), Memory(), 0, 5, [2, None])[0] == 5
    assert decide(bounds(), Memory(), 0, 5, [7, None])[0] == 7
    assert decide(bounds(), Memory(), 0, 5, [None, None])[0] == 5
    assert decide(bounds(), Memory(), 0, 5, [2, 1])[0] == 2


def test_the_bounds_hold():
    narrow = bounds(least=2, most=4)
    assert decide(narrow, Memory(), 0, 3, [9])[0] == 4
    assert decide(narrow, Memory(), 0, 3, [0])[0] == 2
    assert decide(narrow, Memory(), 0, 1, [1])[0] == 2
    assert decide(narrow, Memory(), 0, 6, [6])[0] == 4


# --- stabilisation ----------------------------------------------------------------------


def test_down_goes_to_the_highest_that_was_wanted_within_the_window():
    calm = bounds(down=replace(GONE, window_s=300))
    memory = Memory(proposals=(Noted(0, 8), Noted(100, 6), Noted(200, 3)))
    assert stabilised(calm, memory, 250, 8, 1) == 8
    assert stabilised(calm, memory, 350, 8, 1) == 6
    assert stabilised(calm, memory, 450, 8, 1) == 3
    assert stabilised(calm, memory, 501, 8, 1) == 1


def test_up_goes_to_the_lowest_that_was_wanted_within_the_window():
    calm = bounds(up=replace(AT_ONCE, window_s=60))
    memory = Memory(proposals=(Noted(0, 2), Noted(30, 4)))
    assert stabilised(calm, memory, 45, 2, 9) == 2
    assert stabilised(calm, memory, 75, 2, 9) == 4
    assert stabilised(calm, memory, 91, 2, 9) == 9


def test_without_a_window_only_this_moment_counts():
    memory = Memory(proposals=(Noted(0, 8), Noted(1, 1)))
    assert stabilised(bounds(), memory, 2, 4, 6) == 6
    assert stabilised(bounds(), memory, 2, 4, 2) == 2


def test_what_is_remembered_is_what_was_wanted_not_what_was_done():
    slow = bounds(down=Rules(300, (Policy(PODS, 1, 60),)))
    replicas, memory = decide(slow, Memory(), 0, 6, [8])
    assert replicas == 8
    replicas, memory = decide(slow, memory, 299, 8, [1])
    assert replicas == 8
    replicas, memory = decide(slow, memory, 301, 8, [1])
    assert replicas == 7
    assert [one.count for one in memory.proposals] == [1, 1]


# --- policies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policies", "current", "allowed"),
    [
        ((Policy(PERCENT, 100, 30),), 3, 6),
        ((Policy(PERCENT, 10, 30),), 3, 4),
        ((Policy(PODS, 2, 30),), 3, 5),
        ((Policy(PERCENT, 100, 30), Policy(PODS, 4, 30)), 1, 5),
        ((Policy(PERCENT, 100, 30), Policy(PODS, 4, 30)), 8, 16),
    ],
)
def test_up_goes_as_far_as_the_policy_that_allows_most(policies, current, allowed):
    assert limited(bounds(up=Rules(0, policies)), Memory(), 0, current, 99) == allowed


@pytest.mark.parametrize(
    ("policies", "current", "allowed"),
    [
        ((Policy(PODS, 1, 60),), 5, 4),
        ((Policy(PERCENT, 50, 60),), 5, 2),
        ((Policy(PODS, 1, 60), Policy(PERCENT, 50, 60)), 8, 4),
        ((Policy(PODS, 9, 60),), 5, 1),
    ],
)
def test_down_goes_as_far_as_the_policy_that_allows_most(policies, current, allowed):
    assert limited(bounds(down=Rules(0, policies)), Memory(), 0, current, 0) == allowed


def test_a_policy_counts_what_came_within_its_period():
    doubling = bounds(up=Rules(0, (Policy(PERCENT, 100, 30),)))
    memory = Memory(changes=(Noted(0, 2),))
    assert limited(doubling, memory, 15, 4, 99) == 4
    assert limited(doubling, memory, 31, 4, 99) == 8


def test_a_policy_counts_what_went_within_its_period():
    one_a_minute = bounds(down=Rules(0, (Policy(PODS, 1, 60),)))
    memory = Memory(changes=(Noted(0, -1),))
    assert limited(one_a_minute, memory, 45, 4, 1) == 4
    assert limited(one_a_minute, memory, 61, 4, 1) == 3


def test_a_fall_before_a_rise_does_not_make_the_rise_smaller():
    doubling = bounds(up=Rules(0, (Policy(PERCENT, 100, 60),)))
    memory = Memory(changes=(Noted(0, -4),))
    assert limited(doubling, memory, 15, 4, 99) == 16


# --- from zero and to zero --------------------------------------------------------------

TRIGGER = Trigger("load", "load", AVERAGE, threshold=10, activation=2)
SCALER = ScaledObject(
    "tier",
    least=0,
    most=9,
    polling_s=15,
    cooldown_s=100,
    fallback=Fallback(2, 4, keeps_more=True),
    up=AT_ONCE,
    down=GONE,
    triggers=(TRIGGER,),
)


def run(scaler, values):
    """The replicas after each look, from none on."""
    scaled, seen = Scaled(0), []
    for index, value in enumerate(values):
        scaled = tick(scaler, scaled, 15 * index, {"load": value})
        seen.append(scaled.replicas)
    return seen


def test_the_first_comes_when_a_value_is_above_its_activation_threshold():
    assert run(SCALER, [0, 2, 2.1, 35]) == [0, 0, 1, 4]


def test_as_many_as_must_be_come_first():
    assert run(replace(SCALER, least=3), [0]) == [3]


def test_the_last_goes_when_nothing_was_active_for_longer_than_the_cooldown():
    assert run(SCALER, [30, 0, 0, 0, 0, 0, 0, 0]) == [3, 1, 1, 1, 1, 1, 1, 0]
    assert run(SCALER, [30, 0, 0, 0, 0, 3, 0, 0]) == [3, 1, 1, 1, 1, 1, 1, 1]


def test_where_one_must_stay_one_stays():
    assert run(replace(SCALER, least=1), [30, *[0] * 9])[-1] == 1


def test_any_active_trigger_keeps_the_last_one():
    second = replace(TRIGGER, name="other", activation=0)
    both = replace(SCALER, triggers=(TRIGGER, second))
    scaled = Scaled(1)
    for look in range(20):
        scaled = tick(both, scaled, 15 * look, {"load": 0, "other": 0.5})
    assert scaled.replicas == 1
    for look in range(20, 40):
        scaled = tick(both, scaled, 15 * look, {"load": 0, "other": 0})
    assert scaled.replicas == 0


# --- blind ------------------------------------------------------------------------------


def test_a_blind_scaler_keeps_what_there_is_until_it_falls_back():
    assert run(SCALER, [10, None, None, None, None]) == [1, 1, 1, 4, 4]


def test_a_fallback_that_keeps_more_takes_nothing_away():
    assert run(SCALER, [70, *[None] * 5]) == [7] * 6
    static = replace(SCALER, fallback=Fallback(2, 4, keeps_more=False))
    assert run(static, [70, *[None] * 5]) == [7, 7, 7, 4, 4, 4]


def test_an_answer_in_between_begins_the_count_anew():
    assert run(SCALER, [10, None, None, 10, None, None]) == [1] * 6


def test_a_blind_scaler_does_not_go_to_zero_and_wakes_the_fallbacks_replicas():
    assert run(SCALER, [30, *[None] * 20])[-1] == 4
    assert run(SCALER, [None, None, None]) == [0, 0, 4]


def test_without_a_fallback_a_blind_scaler_stands_still():
    assert run(replace(SCALER, fallback=None), [70, *[None] * 20])[-1] == 7


# --- what was recorded ------------------------------------------------------------------


def recording(**changes):
    made = Recording(
        "command",
        "now",
        {"tokens": 1},
        {"tier": 1},
        (0.0, 5.0, 10.0, 15.0, 20.0),
        (0.0, 1.0, 2.0, 3.0, None),
        {"tier": {"load": Signal("load", (0.0, 9.0, 9.0, 25.0, None))}},
    )
    return replace(made, **changes)


def test_a_recording_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "scaling.json"
    write_recording(path, recording())
    assert read_recording(path) == recording()
    assert json.loads(path.read_text())["signals"]["tier"]["load"]["values"][1] == 9.0


def test_a_file_that_is_no_recording_is_refused(tmp_path):
    path = tmp_path / "scaling.json"
    with pytest.raises(StartError, match="cannot be read"):
        read_recording(path)
    for text in ("[]", "{", '{"signals": {}}'):
        path.write_text(text)
        with pytest.raises(StartError, match="no recording"):
            read_recording(path)


def test_a_replay_asks_for_what_was_said_last_and_holds_the_end():
    moments = replay(recording(), SCALER, after_s=25)
    assert [moment.at for moment in moments] == [0, 15, 30, 45]
    assert [moment.values["load"] for moment in moments] == [0.0, 25.0, None, None]
    assert [moment.held for moment in moments] == [False, False, True, True]
    assert [moment.replicas for moment in moments] == [0, 3, 3, 3]


def test_a_recording_of_another_expression_is_refused():
    other = recording(signals={"tier": {"load": Signal("other", (0.0,) * 5)}})
    for made in (other, recording(signals={})):
        with pytest.raises(StartError, match="no load of the tier"):
            replay(made, SCALER, 0)


def test_a_table_shows_every_change_and_now_and_then_a_line():
    text = table(SCALER, replay(recording(), SCALER, after_s=40), every_s=60).splitlines()
    assert text[0] == "tier: 0 to 9 replicas; load 10 a replica"
    assert [line.split() for line in text[2:]] == [
        ["0:00", "0", "0", "0", "0"],
        ["0:15", "3", "25", "3", "3"],
        ["1:00", "–", "–", "4", "4", "held"],
    ]


def test_phases_are_read_and_others_refused():
    assert parse_phases("0:30,8:1.5") == (Phase(0, 30), Phase(8, 1.5))
    for wrong in ("", "8", "8:", "-1:3", "2:0", "2:inf", "a:1"):
        with pytest.raises(StartError, match="--phases"):
            parse_phases(wrong)


@pytest.mark.parametrize("scaler", read_scalers(), ids=lambda scaler: scaler.tier)
def test_on_the_shipped_recording_each_tier_rises_and_comes_back(scaler):
    moments = replay(read_recording(RECORDED), scaler, after_s=1200)
    replicas = [moment.replicas for moment in moments]
    assert replicas[0] == replicas[-1] == scaler.least
    assert scaler.least < max(replicas) <= scaler.most


def test_the_shipped_recording_holds_a_value_at_every_moment():
    shipped = read_recording(RECORDED)
    for triggers in shipped.signals.values():
        for signal in triggers.values():
            assert len(signal.values) == len(shipped.times)
            assert None not in signal.values


def test_the_command_replays_the_shipped_recording(capsys):
    assert main(["replay", str(RECORDED), "--every", "600"]) == 0
    said = capsys.readouterr().out
    for tier in ("orchestrator", "drafter", "verifier"):
        assert f"{tier}: " in said


def test_the_command_says_in_a_line_what_it_cannot_read(tmp_path, capsys):
    assert main(["replay", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_page_shows_what_the_command_says_of_the_shipped_recording(capsys):
    main(["replay", str(RECORDED)])
    page = (RECORDED.parents[2] / "docs" / "scaling.md").read_text()
    for shown in capsys.readouterr().out.strip().split("\n\n"):
        assert shown in page
    assert read_recording(RECORDED).command in page
