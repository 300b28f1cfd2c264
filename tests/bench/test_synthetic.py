"""`paceline bench --synthetic`: what is replayed, through which delays, what follows from it."""

import json
import socket

import pytest

from bench.options import BenchOptions
from bench.runner import Trial
from bench.synthetic.figures import figures_of, speed_ups
from bench.synthetic.main import run_synthetic
from bench.synthetic.network import parse_delays
from bench.synthetic.relay import join
from bench.synthetic.report import rows
from bench.synthetic.scenario import make_scenario
from bench.synthetic.serving import ways
from bench.synthetic.traces import TRACES, load_trace
from services.cluster.figures import Measured
from services.contract.errors import StartError
from tests.console.events import STARTED, complete, stats

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
    given = "plain_ms=20, verify_ms=25,row_ms=0.5,draft_ms=8,draft_session_ms=1,agreement=0.9"
    scenario = make_scenario(given, None, tokens=77)
    assert (scenario.tokens, scenario.spec.verifier.row_ms) == (77, 0.5)
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
    ],
)
def test_bad_input_ends_the_bench_with_one_line(capsys, options, named):
    assert run_synthetic(BenchOptions(**options)) == 1
    told = capsys.readouterr().err
    assert told.startswith("paceline bench: ")
    assert told.count("\n") == 1
    assert named in told


def test_plain_decoding_and_fixed_are_always_measured():
    assert [way.name for way in ways(("amusd",))] == ["plain", "fixed", "amusd"]
    fixed, amusd = ways(("amusd",))[1:]
    assert fixed.flags == ("--pacing", "fixed", "--no-fallback", "--num-speculative-tokens", "5")
    assert amusd.flags == ("--pacing", "eager", "--no-fallback")


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


# --- what follows --------------------------------------------------------------------


def output(total_s: float, *arrivals: tuple[float, int], rounds: tuple = ()) -> Measured:
    tokens = sum(count for _, count in arrivals)
    done = complete(tokens, max(1, len(rounds)))
    return Measured(STARTED, done, tuple(range(tokens)), arrivals, rounds, total_s)


def trial(way: str, repeat: int, *outputs: Measured, cpu_s: float = 0.0) -> Trial:
    wall_s = max(one.total_s for one in outputs)
    return Trial(way, repeat, 0, (), outputs, wall_s, orchestrator_s=cpu_s)


def test_time_per_token_counts_everything_and_once_more_without_the_first():
    one = trial("plain", 0, output(1.0, (0.2, 1), (0.6, 2), (1.0, 2), rounds=(stats(4, 4),)))
    figures = figures_of([one], "plain", ("plain",))
    assert figures.ms_per_token.median == pytest.approx(200.0)
    assert figures.decode_ms.median == pytest.approx(200.0)
    assert figures.first_token.median == pytest.approx(200.0)
    slow_start = trial("plain", 0, output(1.0, (0.6, 1), (1.0, 4), rounds=(stats(4, 4),)))
    assert figures_of([slow_start], "plain", ()).decode_ms.median == pytest.approx(100.0)


def test_ways_are_compared_within_each_repeat():
    trials = [
        trial("plain", 0, output(2.0, (1.0, 4))),
        trial("eager", 0, output(1.0, (1.0, 4))),
        trial("plain", 1, output(3.0, (1.0, 4))),
        trial("eager", 1, output(1.0, (1.0, 4))),
        trial("eager", 2, output(9.0, (1.0, 4))),
    ]
    assert speed_ups(trials, "eager", "plain") == [pytest.approx(2.0), pytest.approx(3.0)]


def test_cpu_is_counted_per_round():
    one = trial("plain", 0, output(1.0, (0.5, 2), rounds=(stats(0, 0), stats(0, 0))), cpu_s=0.003)
    assert figures_of([one], "plain", ()).cpu_per_round.median == pytest.approx(1.5)


def test_a_table_names_what_was_published_beside_what_was_measured():
    one = figures_of([trial("fixed", 0, output(1.0, (0.5, 4)))], "fixed", ("plain", "fixed"))
    table = dict(rows([one], {"fixed": 17.964}))
    assert table["ms/token"] == ["250.00 (250.00–250.00)"]
    assert table["published, ms/token"] == ["17.96"]
    assert "speed-up over fixed" not in table
