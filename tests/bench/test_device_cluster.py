"""The experiment with a target and a draft model, whatever `paceline bench` says in it."""

import json
import sys
from dataclasses import replace

import pytest

from research.device import __main__ as command
from research.device.cluster import Experiment, devices, measure, show
from services.contract.errors import StartError
from tests.console.typed import read

ASKED = Experiment("big", "small", "vllm", "bfloat16", ("cuda:0", "cuda:1"), "7", 99, 2)


def figures(name, rate, ratio=None, drafted=0.0):
    return {
        "configuration": name,
        "decoding": {"median": rate},
        "decoding_ratio": ratio and {"median": ratio},
        "drafted_per_token": drafted,
        "acceptance_rate": 0.5,
        "block_efficiency": 2.5,
    }


FOUND = {
    "setting": {"target": "big", "drafting": "small", "devices": ["cuda:0", "cuda:1"]},
    "levels": [{"figures": [figures("plain", 10.0), figures("eager", 17.0, 1.7, 2.0)]}],
}


@pytest.fixture
def python(tmp_path):
    """A Python that keeps what it was asked with and writes `FOUND` where a summary is to go."""
    file = tmp_path / "python"
    found = tmp_path / "found.json"
    found.write_text(json.dumps(FOUND))
    file.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nfor last in "$@"; do :; done\n'
        f'cp {found} "$last"\n'
    )
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("device", "drafter", "count", "placed"),
    [
        ("cpu", None, 0, ("cpu", "cpu")),
        ("cuda", None, 1, ("cuda:0", "cuda:0")),
        ("cuda", None, 2, ("cuda:0", "cuda:1")),
        ("cuda:1", None, 2, ("cuda:1", "cuda:0")),
        ("cuda:0", "cuda:0", 2, ("cuda:0", "cuda:0")),
    ],
)
def test_a_draft_model_takes_a_second_device_if_there_is_one(device, drafter, count, placed):
    assert devices(device, drafter, count) == placed


def test_the_bench_takes_these_flags_and_drafts_with_the_model_alone():
    options = read("bench", *ASKED.flags)
    options.check()
    [cluster] = options.clusters.values()
    assert (cluster.target, cluster.draft, cluster.method) == ("big", "small", "model")
    assert (cluster.engine, cluster.dtype) == ("vllm", "bfloat16")
    assert (cluster.verifier_device, cluster.drafter_device) == (("cuda:0",), ("cuda:1",))
    assert options.served_pacings == ("fixed", "eager", "thompson")
    assert options.windows("fixed") == (5,)
    assert (options.prompt_set, options.max_tokens, options.repeats) == ("7", 99, 2)


def test_roles_on_one_device_share_it():
    [cluster] = read("bench", *replace(ASKED, devices=("cuda:0",) * 2).flags).clusters.values()
    assert cluster.share_a_device


def test_what_was_measured_stands_above_what_was_published(python):
    lines = show(measure(python, ASKED)).splitlines()
    assert "big" in lines[0]
    assert lines[2].split()[-4:] == ["10.00", "–", "–", "2.50"]
    assert lines[3].split()[-4:] == ["17.00", "1.70", "50%", "2.50"]
    [published] = [line for line in lines if "humaneval: overlapped" in line]
    assert published.split()[-4:-2] == ["60.96", "1.48"]
    assert len(lines) == 10


def test_a_bench_that_fails_ends_it():
    with pytest.raises(StartError, match="paceline bench ended with 1"):
        measure("/bin/false", ASKED)


def test_the_command_runs_it_in_the_engine_s_python_after_the_steps(
    python, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(command, "_findings", lambda _: [])
    monkeypatch.setattr(command, "_timings", lambda _: [])
    arguments = ["device", "--engine", "vllm", "--vllm-python", python]
    monkeypatch.setattr(sys, "argv", [*arguments, "--cluster", "big", "small", "--prompts", "3"])
    command.main()
    asked = (tmp_path / "asked").read_text()
    assert "-m paceline bench --target big --draft small" in asked
    assert "--set 3" in asked
    assert "AMUSD, refactorchat" in capsys.readouterr().out
