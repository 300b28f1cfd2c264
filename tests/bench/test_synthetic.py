"""`paceline bench --synthetic`: what is replayed, and through which delays."""

import json
import socket
from dataclasses import replace

import pytest
from rich.console import Console

from bench.loop_floor.serving import FLOOR, FLOOR_DRAFTS
from bench.main import run_bench
from bench.options import BenchOptions
from bench.runner import Configuration
from bench.sections import sections_of
from bench.synthetic.crowds import COLUMNS, STEPS, Crowd, crowds, print_crowds
from bench.synthetic.main import Synthetic
from bench.synthetic.network import parse_delays
from bench.synthetic.relay import join
from bench.synthetic.scenario import Worlds, make_scenario, parse_times
from bench.synthetic.serving import ways
from bench.synthetic.traces import TRACES, load_trace
from services.contract.errors import StartError
from tests.bench.test_figures import trial
from tests.console.events import stats

# --- what is replayed ----------------------------------------------------------------


@pytest.mark.parametrize(("name", "tokens"), [("humaneval", 389), ("refactorchat", 925)])
def test_a_published_trace_becomes_times_and_a_place_for_each_token(name, tokens):
    trace = load_trace(name)
    scenario = make_scenario(None, name, tokens=64)
    assert scenario.tokens == len(trace.places) == tokens
    assert sum(not place for place in trace.places) == sum(a < 6 for a in trace.sd.accepted)
    spec = scenario.spec
    assert spec.verifier.plain_ms == trace.plain.token_ms
    assert spec.verifier.costs().forward_ms([2]) == spec.verifier.costs().forward_ms([40])
    assert (spec.agreement().listed, spec.target_id) == (trace.places, f"synthetic-{name}")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda content: content["traces"].clear(), "traces"),
        (lambda content: content["traces"][0]["sd"].pop("draft_ms"), "traces.0.sd.draft_ms"),
        (lambda content: content["traces"][0]["sd"]["accepted"].append(9), "9 tokens of a round"),
        (lambda content: content["traces"][1]["plain"].update(token_ms="soon"), "token_ms"),
    ],
)
def test_a_trace_file_of_another_form_is_told_in_one_line(tmp_path, change, named):
    content = json.loads(TRACES.read_text())
    change(content)
    file = tmp_path / "traces.json"
    file.write_text(json.dumps(content))
    with pytest.raises(StartError) as caught:
        load_trace("humaneval", file)
    assert str(caught.value).startswith(f"--trace: {file} has another form: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_times_can_be_given_on_the_command_line():
    given = "plain_ms=20, verify_ms=25,row_ms=0.5,session_ms=0.045,draft_ms=8,draft_session_ms=1,"
    given += "agreement=0.9"
    scenario = make_scenario(given, None, tokens=77)
    assert (scenario.tokens, scenario.spec.verifier.row_ms) == (77, 0.5)
    assert scenario.spec.verifier.costs().forward_ms([1, 3]) == 25 + 2 * 0.5 + 0.045
    assert (scenario.spec.drafter.session_ms, scenario.spec.agreement().rate) == (1, 0.9)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"trace": "gsm8k"}, "--trace: 'gsm8k' is not one of humaneval, refactorchat"),
        ({"trace": "humaneval", "synthetic": "plain_ms=1"}, "--trace: a trace has its own times"),
        ({"synthetic": "plain_ms=1,speed=2"}, "--synthetic: 'speed' is not one of plain_ms"),
        ({"synthetic": "plain_ms=1"}, "--synthetic: verifier.verify_ms: Field required"),
        ({"synthetic": "nowhere.json"}, "--synthetic: nowhere.json cannot be read"),
        ({"trace": "humaneval", "pacings": ("hasty",)}, "--pacings: 'hasty' is not one of fixed"),
        ({"trace": "humaneval", "delay_ms": "soon"}, "--delay-ms: 'soon' is no number"),
        ({"trace": "humaneval", "delay_ms": "client=5"}, "--delay-ms: 'client' is not one of"),
        ({"trace": "humaneval", "delay_ms": "-1"}, "--delay-ms: -1 is not within"),
        (
            {"trace": "humaneval", "concurrency": (0,)},
            "--concurrency: without a model, numbers of 1",
        ),
        (
            {"synthetic": "plain_ms=1,verify_ms=1,draft_ms=1,agreement=0.5,overlap=0.6"},
            "--synthetic: agreement: an overlap of 0.6 is not within 0.004098 and 0.5",
        ),
        (
            {"trace": "humaneval", "rejection_sample_methods": ("tree",)},
            "--rejection-sample-methods: 'tree' is not one of standard, block, coupled",
        ),
        ({"trace": "humaneval", "concurrency": (1, 513)}, "numbers of 1 to 512"),
    ],
)
def test_bad_input_ends_the_bench_with_one_line(capsys, options, named):
    assert run_bench(BenchOptions(**options)) == 1
    told = capsys.readouterr().err
    assert told.startswith("paceline bench: ")
    assert told.count("\n") == 1
    assert named in told


def test_plain_decoding_and_fixed_are_always_measured():
    assert [way.name for way in ways(("eager",))] == ["plain", "fixed", "eager"]
    fixed, eager = ways(("eager",))[1:]
    assert fixed.flags == ("--pacing", "fixed", "--num-speculative-tokens", "5")
    assert eager.flags == ("--pacing", "eager")


def test_each_rule_is_a_way_of_its_own_and_draws():
    _, *drafting = ways(("eager",), rules=("standard", "coupled"))
    assert [(way.name, way.exact) for way in drafting] == [
        ("fixed, standard", False), ("fixed, coupled", True),
        ("eager, standard", False), ("eager, coupled", True),
    ]  # fmt: skip
    assert drafting[0].options == {"rejection_sample_method": "standard"}


@pytest.mark.parametrize(
    ("overlap", "rules", "temperature"), [("", (), 0.0), ("", ("block",), 1.0), (0.3, (), 1.0)]
)
def test_tokens_are_drawn_where_a_rule_is_asked_for_or_an_overlap_told(overlap, rules, temperature):
    given = "plain_ms=6,verify_ms=7,draft_ms=1,agreement=0.7"
    given += f",overlap={overlap}" if overlap else ""
    asked = BenchOptions(synthetic=given, rejection_sample_methods=rules)
    assert Synthetic.of(asked).schedule.sampling["temperature"] == temperature


def test_every_repeat_has_worlds_of_its_own_the_same_for_every_way():
    alone, first, second = (Worlds(()).groups(*asked) for asked in ((1, 0), (4, 0), (4, 1)))
    assert [len(group) for group in (*alone, *first, *second)] == [1, 16, 16]
    texts = {prompt.text for group in (*first, *second) for prompt in group}
    assert len(texts) == 32
    assert Worlds(()).groups(4, 1) == second


# --- the table -----------------------------------------------------------------------


SPEC = parse_times("plain_ms=6,verify_ms=7,session_ms=0.5,draft_ms=1,agreement=0.7")
CPU = {"orchestrator": 0.004, "verifier": 0.002, "drafter": 0.001, "store": 0.001, "client": 0.5}


def measured() -> list[Crowd]:
    walls = {"plain": 4.0, "adaptive": 2.0, FLOOR: 1.0, FLOOR_DRAFTS: 0.5}
    trials = [
        replace(trial(name, 0, level * wall), level=level, cpu_s=CPU)
        for level in (1, 24)
        for name, wall in walls.items()
    ]
    trials[1] = replace(trials[1], results=trial("", 0, 1.0, rounds=[stats(4, 3)]).results)
    sections = sections_of(trials, [Configuration(name) for name in walls], (), "plain", "")
    return list(crowds(sections, SPEC))


def test_the_table_has_a_row_for_each_number_of_sessions_and_way_and_the_floors():
    found = measured()
    ways = ["plain", "adaptive", FLOOR, FLOOR_DRAFTS, STEPS]
    assert [(one.sessions, one.way) for one in found] == [(n, w) for n in (1, 24) for w in ways]
    plain, drafted, *_, steps = found[5:]
    assert (plain.tokens_per_second, plain.of_plain) == (4 / 96, None)
    assert drafted.of_plain.median == 2.0
    assert (plain.of_floor, drafted.of_floor) == (0.25, 0.25)
    assert steps.tokens_per_second == pytest.approx(24 / (6e-3 + 23 * 0.5e-3))
    assert plain.cpu_ms == pytest.approx({role: 250 * spent for role, spent in CPU.items()})
    assert plain.ours == pytest.approx(250 * 0.008)
    assert (plain.gap.p50, plain.gap.p99) == (48_000.0, 48_000.0)
    assert [one.accepted for one in found[:2]] == [None, 0.75]


def test_what_is_not_known_of_a_row_is_a_dash(capsys):
    console = Console(width=200)
    print_crowds(console, measured(), {"complete": True}, "synthetic")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["synthetic", "tokens/s", "×"]
    [alone] = [line for line in lines if line.startswith(f" 1 {STEPS}")]
    assert alone.split()[3:] == ["167", *"–" * (len(COLUMNS) - 1)]
    assert "complete: True" in lines


# --- the network ---------------------------------------------------------------------


def test_delays_are_for_both_roles_or_for_each():
    assert parse_delays("5") == {"verifier": 5.0, "drafter": 5.0}
    assert parse_delays("verifier=5,drafter=0.5") == {"verifier": 5.0, "drafter": 0.5}


def test_a_relay_delays_everything_and_keeps_its_order():
    near, one = socket.socketpair()
    other, far = socket.socketpair()
    join(_tcp_like(one), _tcp_like(other), 0.02)
    sent = [bytes([number]) * (number + 1) for number in range(200)]
    for chunk in sent:
        near.sendall(chunk)
    near.shutdown(socket.SHUT_WR)
    received = b""
    while data := far.recv(4096):
        received += data
    assert received == b"".join(sent)
    far.sendall(b"back")
    assert near.recv(4) == b"back"


def test_nothing_passes_a_relay_before_its_time():
    near, one = socket.socketpair()
    other, far = socket.socketpair()
    join(_tcp_like(one), _tcp_like(other), 0.2)
    far.setblocking(False)
    near.sendall(b"x")
    with pytest.raises(BlockingIOError):
        far.recv(1)
    far.settimeout(20)
    assert far.recv(1) == b"x"


class _tcp_like(socket.socket):
    """A local pair has no TCP options to set."""

    def __init__(self, pair: socket.socket) -> None:
        super().__init__(fileno=pair.detach())

    def setsockopt(self, *_: object) -> None: ...
