"""Models, and K/V, that do not fit where they are to run."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from services.contract.errors import StartError
from services.engine.native import NativeEngine
from services.engine.native import device_memory as room
from services.engine.native.device_memory import kv_capacity
from services.engine.spec import ModelSpec
from services.verifier.main import run
from services.verifier.settings import VerifierSettings
from tests.models import tiny_model, tiny_model_folder

FULL = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return str(tiny_model_folder(tmp_path_factory.mktemp("models"), "llama"))


def full(*_, **__):
    raise FULL


def test_weights_that_do_not_fit_a_gpu_are_told_with_what_they_take_and_what_is_free(
    saved, monkeypatch, tmp_path
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (12_345_678_901, 80_000_000_000))
    monkeypatch.setattr(PreTrainedModel, "to", full)
    settings = VerifierSettings(target=saved, device="cuda:0", cache_dir=tmp_path)
    taken = sum(4 * weight.numel() for weight in tiny_model("llama").parameters())
    with pytest.raises(StartError) as refusal:
        run(settings)
    assert str(refusal.value) == (
        f"model {saved}: its weights take {taken / 1e6:.1f} MB, and cuda:0 has 12.3 GB free"
    )


def test_a_gpu_with_room_for_the_weights_alone_is_told(saved, monkeypatch, tmp_path):
    monkeypatch.setattr(NativeEngine, "forward", full)
    monkeypatch.setattr(room, "free_memory", lambda: 5_000_000)
    with pytest.raises(StartError) as refusal:
        NativeEngine.load(ModelSpec(saved, cache_dir=tmp_path))
    assert str(refusal.value).endswith("; the 5.0 MB left on cpu are too little to run it")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_a_device_that_is_not_there_is_named(saved, device, tmp_path):
    with pytest.raises(StartError, match=f"device: {device} cannot be used: "):
        NativeEngine.load(ModelSpec(saved, device=device, cache_dir=tmp_path))


def test_kv_capacity_is_what_was_asked_for_or_a_share_of_what_is_free():
    assert kv_capacity("m", 50, 1000, longest=4096, free=50_000) == 50
    assert kv_capacity("m", None, 1000, longest=4096, free=4_000_000) == 1000
    assert kv_capacity("m", None, 1000, longest=10, free=40_000) == 10


def test_kv_that_does_not_fit_is_told_with_both_figures():
    with pytest.raises(StartError, match=r"K/V of 51 tokens of m takes 51\.0 MB, and 50\.0 MB are"):
        kv_capacity("m", 51, 1_000_000, longest=4096, free=50_000_000)
    with pytest.raises(StartError, match="K/V of 256 tokens, the least to serve with"):
        kv_capacity("m", None, 1000, longest=4096, free=1_000_000)
    with pytest.raises(StartError, match="K/V of 10 tokens, the least to serve with"):
        kv_capacity("m", None, 1000, longest=10, free=39_000)


def test_a_machine_without_room_for_sessions_stops_the_start(saved, monkeypatch, tmp_path):
    monkeypatch.setattr(room, "free_memory", lambda: 100_000)
    with pytest.raises(StartError, match=r"K/V of 256 tokens.* 0\.1 MB are free"):
        NativeEngine.load(ModelSpec(saved, cache_dir=tmp_path))
    with pytest.raises(StartError, match=r"kv_capacity_tokens: .* 0\.1 MB are free"):
        NativeEngine.load(ModelSpec(saved, cache_dir=tmp_path, kv_capacity_tokens=1000))
