"""The check of a device, on the one device there is."""

import json
import sys

import pytest
import torch

from research.device import __main__ as command
from research.device import check as module
from research.device.check import check
from research.device.speed import random_model, speed
from services.engine.native.paging import Group
from services.engine.spec import ModelSpec


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny():
    return random_model("tiny", "cpu", "float32")


def test_every_row_is_the_cpus_own_in_every_dtype(tiny):
    findings = check(tiny, "cpu", ["float32", "bfloat16"])
    assert all(finding.right for finding in findings), findings
    figures = {finding.figure for finding in findings if finding.dtype == "bfloat16"}
    assert max(figures) > 1e-4, "two engines of different dtypes were compared"


def test_rows_that_read_wrong_pages_are_found(tiny, monkeypatch):
    """A fault that texts within one page, as those of the check at load, do not show."""
    real = Group._page_index

    def first_pages(self, like):
        pages = real(self, like).view(self._count * self._kv_heads, -1)
        return pages[:, :1].expand_as(pages).reshape(-1)

    made, built = module._engine, []

    def engine_of(*args):
        if built:  # The first is the one on the CPU, which stays right.
            monkeypatch.setattr(Group, "_page_index", first_pages)
        built.append(args)
        return made(*args)

    monkeypatch.setattr(module, "_engine", engine_of)
    findings = {finding.name: finding for finding in check(tiny, "cpu", ["float32"])}
    assert not findings["decoding together"].right
    assert not findings["prompts in chunks"].right


def test_steps_are_timed_beside_the_floor(tiny):
    timings = speed(tiny, ModelSpec("tiny", kv_capacity_tokens=4096), [1, 3], text=70, repeats=1)
    assert [timing.name.split(",")[0] for timing in timings[:4]] == ["1 sessions"] * 2 + [
        "3 sessions"
    ] * 2
    assert all(timing.ms > 0 and timing.floor_ms > 0 for timing in timings)
    assert timings[2].floor_ms > timings[0].floor_ms


def test_the_command_ends_with_1_where_something_is_wrong(monkeypatch, tmp_path, capsys):
    report = tmp_path / "report.json"
    arguments = ["device", "--check-only", "--dtype", "bfloat16", "--json", str(report)]
    monkeypatch.setattr(sys, "argv", arguments)
    command.main()
    assert "WRONG" not in capsys.readouterr().out
    assert json.loads(report.read_text())["right"]
    wrong = [finding._replace(figure=9.0) for finding in check_of_one()]
    monkeypatch.setattr(command, "check", lambda *_: wrong)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 1
    assert "WRONG" in capsys.readouterr().out


def check_of_one():
    return check(random_model("tiny", "cpu", "float32"), "cpu", ["float32"])[:1]
