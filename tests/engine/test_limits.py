"""Limits taken from configurations and from the machine; cores."""

from __future__ import annotations

import os

import pytest
import torch
from transformers import LlamaConfig

from services.contract.errors import StartError
from services.engine.limits import affordable_tokens, free_memory, max_context
from services.engine.threads import pin


def config(**rope):
    return LlamaConfig(
        max_position_embeddings=4096, rope_parameters={"rope_theta": 10000.0, **rope}
    )


def test_the_context_is_the_models_or_the_shorter_wish():
    plain = config(rope_type="default")
    assert max_context(plain, None) == 4096
    assert max_context(plain, 100) == 100
    assert max_context(plain, 9999) == 4096


def test_length_dependent_rope_is_held_to_its_unscaled_length():
    dynamic = config(rope_type="dynamic", factor=4.0, original_max_position_embeddings=1024)
    assert max_context(dynamic, None) == 1024


def test_kv_capacity_is_a_cautious_share_of_memory():
    assert affordable_tokens(1000, memory=8_000_000) == 2000
    assert affordable_tokens(10**12, memory=8_000_000) == 1


def test_a_control_group_limits_the_free_memory(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    monkeypatch.setattr("services.engine.limits._CGROUP", tmp_path)
    assert free_memory() == 3000
    # Files that were read are dropped before anything else is refused.
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 1500\nactive_file 0\n")
    assert free_memory() == 4500
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory() > 3000


def test_pinning_sets_threads_and_cpus():
    threads, cpus = torch.get_num_threads(), os.sched_getaffinity(0)
    try:
        pin(1, {min(cpus)})
        assert torch.get_num_threads() == 1
        assert os.sched_getaffinity(0) == {min(cpus)}
    finally:
        pin(threads, cpus)


def test_a_cpu_that_is_not_there_is_named():
    with pytest.raises(StartError, match="99999"):
        pin(cpus=[99999])
