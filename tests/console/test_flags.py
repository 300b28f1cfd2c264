"""A settings class becomes flags, and its errors name the flag."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import Field

import bench.main
from bench.options import BenchOptions
from services.cluster.flags import Flags
from services.contract.errors import StartError
from services.runtime.options import Numbers, Settings
from tests.console.typed import paceline
from tests.console.typed import read as typed


class Knobs(Settings):
    """A thing with knobs."""

    target: str = Field(description="What to run.")
    port: int = Field(default=0, ge=0, le=65535, description="Where to listen.")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Number format.")
    cpus: Numbers = Field((), description="Cores.")
    loud: bool = Field(False, description="Say more.")
    threads: int | None = Field(None, description="How many.")


def read(*arguments: str) -> Knobs:
    flags = Flags("paceline trial", "A thing with knobs.", Knobs)
    flags.parse(arguments)
    return flags.read(Knobs)


def test_flags_become_settings():
    settings = read("--target", "m", "--port", "7", "--cpus", "0,2", "--loud", "--threads", "3")
    assert settings == Knobs(target="m", port=7, cpus=(0, 2), loud=True, threads=3)


def test_a_flag_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("PACELINE_PORT", "5")
    assert read("--target", "m").port == 5
    assert read("--target", "m", "--port", "6").port == 6


def test_no_loud_turns_off_what_the_environment_turned_on(monkeypatch):
    monkeypatch.setenv("PACELINE_LOUD", "1")
    assert read("--target", "m").loud
    assert not read("--target", "m", "--no-loud").loud


def test_a_missing_setting_is_named_with_its_variable():
    with pytest.raises(StartError) as caught:
        read()
    assert str(caught.value) == "--target is needed (or PACELINE_TARGET)"


@pytest.mark.parametrize(
    ("flag", "value"), [("--port", "70000"), ("--port", "x"), ("--dtype", "int3"), ("--cpus", "a")]
)
def test_a_bad_value_is_named_with_its_flag_in_one_line(flag, value):
    with pytest.raises(StartError) as caught:
        read("--target", "m", flag, value)
    message = str(caught.value)
    assert message.startswith(f"{flag}: ")
    assert value in message
    assert "\n" not in message


def test_a_bad_value_from_the_environment_is_named_with_its_variable(monkeypatch):
    monkeypatch.setenv("PACELINE_PORT", "-1")
    with pytest.raises(StartError, match=r"^PACELINE_PORT: '-1'"):
        read("--target", "m")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--colour", "red"), "No such option .--colour."),
        (("-x",), "No such option .-x."),
        (("red",), "unexpected extra argument .red."),
        (("--port",), "Option .--port. requires an argument"),
        (("--loud=1",), "Option .--loud. does not take a value"),
    ],
)
def test_what_cannot_be_read_is_named(words, named):
    with pytest.raises(StartError, match=named):
        read("--target", "m", *words)


def test_a_value_may_begin_with_a_dash_and_words_may_follow_two():
    options = typed("generate", "--address", "a:1", "--regex", "-?[0-9]+", "--", "--help")
    assert (options.form.regex, options.prompt) == ("-?[0-9]+", "--help")


def test_an_unknown_flag_ends_with_status_2():
    for command in ("up", "verifier", "generate", "bench"):
        done = paceline(command, "--colour", "red")
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert "--colour" in done.stderr


def test_help_explains_every_setting_with_its_default_and_variable(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        read("--help")
    text = capsys.readouterr().out
    for word in (
        "A thing with knobs.",
        "What to run.",
        "--port",
        "(default: float32)",
        "--no-loud",
    ):
        assert word in text
    assert "PACELINE_THREADS" in text.replace("\n", "").replace(" ", "")


class Voice(Settings):
    """How to speak."""

    tone: str = Field("calm", description="How.")
    loud: bool = Field(True, description="Say more.")


def test_two_classes_read_one_command_line_and_share_a_flag():
    flags = Flags("paceline trial", "", Knobs, Voice)
    flags.parse(["--target", "m", "--tone", "keen", "--no-loud"])
    assert flags.read(Voice) == Voice(tone="keen", loud=False)
    assert flags.read(Knobs) == Knobs(target="m", loud=False)


def bench_options(monkeypatch, *flags: str) -> BenchOptions:
    asked: list[BenchOptions] = []

    def run_bench(options: BenchOptions) -> int:
        asked.append(options)
        return 0

    monkeypatch.setattr(bench.main, "run_bench", run_bench)
    monkeypatch.delenv("PACELINE_TARGET", raising=False)
    done = paceline("bench", *flags)
    assert done.exit_code == 0, done.output
    return asked[0]


def test_a_bench_without_flags_compares_pacings_under_the_server_s_own_rule(monkeypatch):
    assert bench_options(monkeypatch) == BenchOptions(target="smollm2-135m-instruct")


def test_flags_of_the_bench_name_rules_and_pacings_by_commas(monkeypatch):
    words = (
        "--pacings eager,fixed --num-candidates 3 --num-speculative-tokens 8 --top-p 0.9 "
        "--set stratified --concurrency 1,16"
    )
    rules = ("--rejection-sample-methods", "standard, block")
    options = bench_options(monkeypatch, *rules, *words.split())
    assert (options.prompt_set, options.concurrency) == ("stratified", (1, 16))
    assert options.rejection_sample_methods == ("standard", "block")
    assert options.pacings == ("eager", "fixed")
    assert (options.num_candidates, options.num_speculative_tokens) == (3, 8)
    assert options.sampling["top_p"] == 0.9
