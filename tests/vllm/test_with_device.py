"""`bench.device --engine vllm`, in processes of its own: rows, and times of steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)


def test_rows_are_those_of_the_native_engine_and_steps_are_timed(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "bench.device", "--engine", "vllm", "--shape", "tiny"]
    command += ["--vllm-python", sys.executable, "--sessions", "1", "2", "--text", "70"]
    command += ["--profile"]
    done = subprocess.run(
        [*command, "--json", str(report)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(report.read_text())
    assert told["right"]
    assert {finding["dtype"] for finding in told["findings"]} == {"float32", "bfloat16"}
    assert len(told["findings"]) == 16
    assert max(finding["figure"] for finding in told["findings"]) > 0, "two engines answered"
    assert [timing["name"] for timing in told["timings"][:3]] == [
        "1 x one token",
        "1 x 5 draft tokens",
        "1 x a tree of 10",
    ]
    for timing in told["timings"]:
        assert timing["ms"] > 0
        assert "forward" in timing["profile"]
