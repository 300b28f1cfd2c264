"""The check of a device, on the one device there is."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from bench.device import __main__ as command
from bench.device import check as module
from bench.device.check import check, natively
from bench.device.on_vllm import by_vllm
from bench.device.shapes import (
    SHAPES,
    bytes_per_token,
    random_model,
    save_without_weights,
    weight_bytes,
)
from bench.device.speed import BLOCKS, Wanted, speed
from services.contract.errors import StartError
from services.engine.native import NativeEngine
from services.engine.native.device_memory import weight_bytes as bytes_of
from services.engine.native.groups import Group
from services.engine.native.pages import PAGE
from services.engine.port import Segment
from tests.bench import native_as_vllm


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
    findings = check(tiny, ["float32", "bfloat16"], natively(tiny, "cpu"))
    assert all(finding.right for finding in findings), findings
    figures = {finding.figure for finding in findings if finding.dtype == "bfloat16"}
    assert max(figures) > 1e-4, "two engines of different dtypes were compared"


def test_rows_that_read_wrong_pages_are_found(tiny, monkeypatch):
    """A fault that texts within one page, as those of the check at load, do not show."""
    real = Group._page_index

    def first_pages(self, like):
        pages = real(self, like).view(-1, self._keys // PAGE)
        return pages[:, :1].expand_as(pages).reshape(-1)

    made, built = module._engine, []

    def engine_of(*args):
        if built:  # The first is the one on the CPU, which stays right.
            monkeypatch.setattr(Group, "_page_index", first_pages)
        built.append(args)
        return made(*args)

    monkeypatch.setattr(module, "_engine", engine_of)
    found = check(tiny, ["float32"], natively(tiny, "cpu"))
    findings = {finding.name: finding for finding in found}
    assert not findings["decoding together"].right
    assert not findings["prompts in chunks"].right


def test_steps_are_timed_beside_the_floor(tiny):
    wanted = Wanted("tiny", "float32", "cpu", 1, (1, 3), text=70, repeats=1)
    timings = speed(NativeEngine.taking(tiny, wanted.spec("tiny")), wanted, "cpu")
    assert [timing.name for timing in timings[:-1]] == [
        f"{count} x {block}" for count in (1, 3) for block in BLOCKS
    ]
    assert all(timing.ms > 0 and timing.floor_ms > 0 for timing in timings)
    assert timings[len(BLOCKS)].floor_ms > timings[0].floor_ms


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_floor_counts_what_an_engine_holds(tiny, dtype):
    model = tiny.to(getattr(torch, dtype))
    wanted = Wanted("tiny", dtype, "cpu", 1, (1,), text=70)
    assert weight_bytes("tiny", dtype) == bytes_of(model)
    engine = NativeEngine.taking(model, wanted.spec("tiny"))
    cache = engine.new_cache(70)
    engine.forward([Segment(cache, [1])])
    assert bytes_per_token("tiny", dtype, "cpu") == cache.bytes_per_token


def test_a_step_is_taken_apart_where_that_is_asked_for(tiny):
    wanted = Wanted("tiny", "float32", "cpu", 1, (1,), text=70, repeats=1, profile=True)
    engine = NativeEngine.taking(tiny, wanted.spec("tiny"))
    for timing in speed(engine, wanted, "cpu"):
        assert "tottime" in timing.profile
        assert "aten::" in timing.profile
    plain = speed(engine, replace(wanted, profile=False), "cpu")
    assert {timing.profile for timing in plain} == {""}
    assert engine.kv_tokens_used == 0


def test_the_largest_shape_is_saved_in_kilobytes(tmp_path):
    save_without_weights("8b", tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 100_000
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.items() >= SHAPES["8b"].items()
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_another_process_loads_the_same_model_and_its_rows_come_back(tiny, tmp_path):
    python = native_as_vllm.python(tmp_path)
    findings = check(tiny, ["float32"], by_vllm(python, tiny, "cpu", threads=1))
    assert all(finding.right for finding in findings), findings
    assert {finding.figure for finding in findings} == {0.0}
    other = random_model("tiny", "cpu", "float32")
    other.lm_head.weight.data += 1
    assert not all(one.right for one in check(tiny, ["float32"], by_vllm(python, other, "cpu", 1)))


def test_what_the_other_process_ends_with_is_said(tiny, tmp_path, capfd):
    python = native_as_vllm.python(tmp_path)
    with pytest.raises(StartError, match=r"ended with 1: .*float12"):
        by_vllm(python, tiny, "cpu", 1)("float12")
    assert "float12" in capfd.readouterr().err


def test_the_command_ends_with_1_where_something_is_wrong(monkeypatch, tmp_path, capsys):
    report = tmp_path / "report.json"
    arguments = ["device", "--check-only", "--dtype", "bfloat16", "--json", str(report)]
    monkeypatch.setattr(sys, "argv", arguments)
    command.main()
    assert "WRONG" not in capsys.readouterr().out
    assert json.loads(report.read_text())["right"]
    steps = ["device", "--steps-only", "--shape", "tiny", "--sessions", "1", "--text", "70"]
    monkeypatch.setattr(sys, "argv", steps)
    command.main()
    shown = capsys.readouterr().out
    assert "1 x a tree of 10" in shown
    assert "on the CPU" not in shown
    monkeypatch.setattr(sys, "argv", arguments)
    wrong = [finding._replace(figure=9.0) for finding in check_of_one()]
    monkeypatch.setattr(command, "check", lambda *_: wrong)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 1
    assert "WRONG" in capsys.readouterr().out


def check_of_one():
    tiny = random_model("tiny", "cpu", "float32")
    return check(tiny, ["float32"], natively(tiny, "cpu"))[:1]
