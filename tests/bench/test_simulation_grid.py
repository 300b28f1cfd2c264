"""The grid of pacings, the replay of published traces, and their command line."""

import json
import sys
from dataclasses import replace

import pytest

from bench.simulation import PLAIN, __main__, simulate
from bench.simulation.constants import constants
from bench.simulation.grid import Cell, Grid, every_pacing, run_cell, run_grid, standings
from bench.simulation.traces import replays
from bench.synthetic.traces import TRACES, load_traces
from orchestrator.core.pacing import POLICIES

SMALL = Grid(acceptances=(0.0, 0.9), ratios=(6.0,), hops_ms=(0.25,), loads=(1,), texts=3, tokens=24)
TRACE = {
    "name": "short",
    "plain": {"token_ms": 20.0, "ms_per_token": 21.0},
    "sd": {
        "draft_ms": 10.0,
        "verify_ms": 24.0,
        "ms_per_token": 18.0,
        "accepted": [6, 3, 1, 6, 6, 2, 6],
    },
    "amusd": {"ms_per_token": 15.0},
}


def test_every_known_pacing_is_tried_as_served_and_bare():
    place = run_cell(SMALL, next(SMALL.cells()))
    assert place.pacings == every_pacing()
    assert set(POLICIES) | {f"{name}, bare" for name in POLICIES} == set(place.pacings)
    assert {PLAIN, *constants(SMALL.counts, SMALL.window), *place.pacings} == set(place.ms)


def test_with_a_useless_drafter_plain_decoding_is_the_best_constant_and_with_a_good_one_not():
    useless, good = run_grid(SMALL)
    assert useless.best_constant == PLAIN
    assert good.best_constant not in (PLAIN, "1 sync", "1 async")
    assert good.speed_up(good.best) > 1.5
    assert all(useless.beside_constant(name) <= 1.001 for name in useless.pacings)


def test_two_processes_find_the_same_as_one():
    assert list(run_grid(SMALL, processes=2)) == list(run_grid(SMALL))


def test_all_pacings_of_a_cell_meet_the_same_texts():
    scenarios = SMALL.scenarios(Cell(0.9, 6.0, 0.25, 1))
    alike = {replace(one, pacing="", policy=None, fallback=True) for one in scenarios.values()}
    assert len(alike) == 1


def test_pacings_stand_in_the_order_of_their_nearness_to_the_best_constants():
    found = standings(list(run_grid(SMALL)))
    assert [one.pacing for one in found] == sorted(
        (one.pacing for one in found),
        key=lambda name: -next(one.beside_constant for one in found if one.pacing == name),
    )
    assert sum(one.best_in for one in found) == 2
    assert all(one.worst <= one.beside_constant for one in found)


# --- traces ---------------------------------------------------------------------------


def traces_file(tmp_path, *traces):
    path = tmp_path / "traces.json"
    path.write_text(json.dumps({"traces": traces}))
    return path


def test_a_trace_says_where_the_drafter_was_right(tmp_path):
    (trace,) = load_traces(traces_file(tmp_path, TRACE), "--traces")
    assert [i for i, right in enumerate(trace.places) if not right] == [8, 9, 23]
    assert len(trace.places) == 30


def test_a_trace_is_replayed_by_every_pacing_and_compared_with_synchronous_speculation(tmp_path):
    found = list(replays(load_traces(traces_file(tmp_path, TRACE), "--traces"), (0.5,), (0.5, 1.0)))
    ms = {one.way: one.ms_per_token for one in found}
    assert ms[PLAIN] == pytest.approx(20.5)
    asynchronous = ("eager, bare, branches 1", "eager, bare", "fixed, bare", PLAIN)
    assert sorted(ms[way] for way in asynchronous) == [ms[way] for way in asynchronous]
    assert {one.way for one in found if one.over_synchronous == 1.0} == {"fixed, bare"}


def test_on_the_published_traces_bare_eager_is_bound_by_the_drafter_and_beats_the_synchronous():
    """Round trip 0.5 ms, then 5 ms more; the floor is 11.5 ms, a drafted token."""
    found = replays(load_traces(TRACES, "--traces"), (0.5, 5.5), ())
    ratio = {
        (one.trace, one.network_ms): (one.ms_per_token, one.over_synchronous)
        for one in found
        if one.way == "eager, bare"
    }
    assert all(11.5 < ms < 13.0 for (_, network), (ms, _) in ratio.items() if network == 0.5)
    assert ratio["humaneval", 0.5][1] == pytest.approx(1.24, abs=0.02)
    assert ratio["refactorchat", 0.5][1] == pytest.approx(1.30, abs=0.02)
    assert ratio["humaneval", 5.5][1] == pytest.approx(1.34, abs=0.02)
    assert ratio["refactorchat", 5.5][1] == pytest.approx(1.40, abs=0.04)


# --- the command line -----------------------------------------------------------------


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["simulation", *arguments])
    return __main__.main()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--acceptances", "0.5,1.5"), "--acceptances: 1.5 is not between 0 and 1"),
        (("--ratios", "fast"), "--ratios: 'fast' is no list of numbers"),
        (("--hops-ms", "-1"), "--hops-ms: -1 is not between 0 and 10000"),
        (("--loads", ""), "--loads: no number given"),
        (("--pacings", "hasty"), "--pacings: 'hasty' is not one of"),
        (("--run-length", "0.5"), "--run-length: 0.5 is not 0, or between 1 and 1e+06"),
        (("--processes", "0"), "--processes: 0 is not between 1 and 64"),
        (("--traces", "nowhere.json"), "--traces: nowhere.json cannot be read"),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_it(monkeypatch, capsys, arguments, complaint):
    assert run(monkeypatch, *arguments) == 1
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("content", ["", "{}", '{"traces": [{"name": "x"}]}', '{"traces": [3]}'])
def test_a_trace_of_another_form_is_one_line(monkeypatch, capsys, tmp_path, content):
    path = tmp_path / "wrong.json"
    path.write_text(content)
    assert run(monkeypatch, "--traces", str(path)) == 1
    told = capsys.readouterr().err
    assert f"--traces: {path} has another form" in told
    assert told.count("\n") == 1


def test_a_round_that_emitted_more_than_it_could_is_refused(monkeypatch, capsys, tmp_path):
    wrong = TRACE | {"sd": TRACE["sd"] | {"accepted": [7]}}
    assert run(monkeypatch, "--traces", str(traces_file(tmp_path, wrong))) == 1
    assert "7 tokens of a round are not 1 to 6" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_one_line(monkeypatch, capsys, tmp_path):
    file = str(traces_file(tmp_path, TRACE))
    assert run(monkeypatch, "--traces", file, "--json", str(tmp_path / "no" / "x.json")) == 1
    assert "x.json cannot be written" in capsys.readouterr().err


def test_the_grid_is_printed_and_written(monkeypatch, capsys, tmp_path):
    out = tmp_path / "grid.json"
    small = ("--acceptances", "0.8", "--ratios", "5", "--hops-ms", "1", "--loads", "1,2")
    sizes = ("--texts", "2", "--tokens", "12", "--processes", "1", "--json", str(out))
    assert run(monkeypatch, *small, *sizes) == 0
    assert "best k" in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert [place["cell"]["load"] for place in written["places"]] == [1, 2]
    cell = Cell(**written["places"][0]["cell"])
    again = simulate(Grid(texts=2, tokens=12).scenarios(cell)["eager"]).ms_per_token
    assert written["places"][0]["ms"]["eager"] == again
