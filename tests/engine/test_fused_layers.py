"""Decoder layers in fewer operations say what transformers' own say, or are not used."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine import number_formats
from services.engine.native import NativeEngine, fused_layers, packing
from services.engine.native.fused_layers import FusedLayer
from services.engine.native.invariance import InvariantPlain
from services.engine.native.packing import BlockedLinear, HalfLinear, packing_of
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from tests.engine.conftest import emptied, engine_with, feed, model_of, random_text, said_by
from tests.models import tiny_model

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text")
EXACT = {"rtol": 1e-5, "atol": 1e-4}
TEXT = random_text(40)


@pytest.fixture(params=ARCHITECTURES)
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _packed_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    if packing_of(model_of("llama")) is not BlockedLinear or packing._MULTIPLY_AND_ADD is None:
        pytest.skip("this CPU, or this PyTorch, does not multiply so")


def fused_of(engine: NativeEngine) -> list[bool]:
    """Of each decoder layer, whether it is computed in fewer operations."""
    return [isinstance(layer, FusedLayer) for layer in engine.model.model.layers]


def by_chunks(engine: NativeEngine, text: list[int], skip: SkipMask | None = None) -> Tensor:
    """Logits of the whole text, which the engine is given in four pieces."""
    pieces = (text[:12], text[12:13], text[13:18], text[18:])
    with emptied(engine):
        cache = engine.new_cache(64)
        return torch.cat([engine.forward([Segment(cache, one)], skip)[0] for one in pieces])


def assert_as_transformers(engine: NativeEngine, model: Any) -> None:
    assert all(fused_of(engine))
    expected = said_by(model, TEXT)
    ours = by_chunks(engine, TEXT)
    torch.testing.assert_close(ours, expected, **EXACT)
    assert (ours - expected).norm() / expected.norm() < 1e-5


def test_texts_in_chunks_get_transformers_own_logits(arch: str) -> None:
    assert_as_transformers(engine_with(model_of(arch)), model_of(arch))


def test_trees_and_rollbacks_get_transformers_own_logits(arch: str) -> None:
    engine, model = engine_with(model_of(arch)), model_of(arch)
    left, right = TEXT[:20], TEXT[:17] + random_text(3, seed=1)
    cache = engine.new_cache(64)
    feed(engine, cache, [*TEXT[:13], 5, 6, 7])
    cache.rollback(13)
    parents = [-1, 0, 1, 2, 3, 4, 5, 3, 7, 8]
    branches = feed(engine, cache, left[13:] + right[17:], parents=parents)
    torch.testing.assert_close(branches[:7], said_by(model, left)[13:], **EXACT)
    torch.testing.assert_close(branches[7:], said_by(model, right)[17:], **EXACT)


def test_sessions_of_one_step_do_not_disturb_each_other(arch: str) -> None:
    engine, model = engine_with(model_of(arch)), model_of(arch)
    texts = [random_text(length, seed=length) for length in (3, 18, 1)]
    caches = [engine.new_cache(32) for _ in texts]
    found = engine.forward([Segment(*pair) for pair in zip(caches, texts, strict=True)])
    for ours, text in zip(found, texts, strict=True):
        torch.testing.assert_close(ours, said_by(model, text), **EXACT)


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_windows_of_some_layers_are_theirs_alone(arch: str) -> None:
    types = ["sliding_attention", "full_attention"]
    model = tiny_model(arch, use_sliding_window=True, sliding_window=6, layer_types=types)
    assert [layer.self_attn.sliding_window for layer in model.model.layers] == [6, None]
    assert_as_transformers(engine_with(model), model)


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_biases_of_every_projection_are_added(arch: str) -> None:
    more = {"mlp_bias": True} if arch == "llama" else {}
    model = tiny_model(arch, attention_bias=True, **more)
    assert model.model.layers[0].self_attn.o_proj.bias.abs().max() > 0
    assert_as_transformers(engine_with(model), model)


@pytest.mark.parametrize("settings", [{"num_key_value_heads": 4}, {"num_key_value_heads": 1}])
def test_any_number_of_key_heads_will_do(settings: dict[str, int]) -> None:
    model = tiny_model("llama", **settings)
    assert_as_transformers(engine_with(model), model)


def test_a_norm_with_weights_and_an_epsilon_of_its_own_keeps_them(arch: str) -> None:
    model = copy.deepcopy(model_of(arch))
    for module in model.modules():
        name = next((n for n in ("variance_epsilon", "eps") if hasattr(module, n)), None)
        if name is not None:
            setattr(module, name, 0.3)
            module.weight.data.uniform_(0.5, 2.0)
    assert_as_transformers(engine_with(model), model)


def test_bfloat16_stays_near_float32(arch: str) -> None:
    model = copy.deepcopy(model_of(arch)).to(torch.bfloat16)
    if packing_of(model) is not BlockedLinear:
        pytest.skip("this CPU does not multiply bfloat16")
    engine = engine_with(model, dtype="bfloat16")
    assert all(fused_of(engine))
    expected = said_by(model_of(arch), TEXT)
    ours, stock = by_chunks(engine, TEXT), said_by(model, TEXT)
    errors = [(logits - expected).abs().mean() / expected.std() for logits in (ours, stock)]
    assert errors[0] < 0.05
    assert errors[0] < 1.5 * errors[1]


MASKS = [
    SkipMask.of(2, attention=[0]),
    SkipMask.of(2, attention=[1], mlp=[0]),
    SkipMask.of(2, attention=[0], mlp=[0]),
    SkipMask.of(2, mlp=[0, 1]),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_sub_layers_are_skipped_as_in_transformers_layers(arch: str, mask: SkipMask) -> None:
    fused, stock = engine_with(model_of(arch)), engine_with(model_of(arch))
    fused_layers.unfuse(stock.model)
    torch.testing.assert_close(by_chunks(fused, TEXT, mask), by_chunks(stock, TEXT, mask), **EXACT)
    assert_as_transformers(fused, model_of(arch))


def test_soft_tokens_run_through_fused_layers() -> None:
    fused = engine_with(model_of("llama"))
    rows = fused.model.get_input_embeddings().weight[TEXT[5:8]].clone()
    fused.give_soft_tokens(rows)
    soft = TEXT[:5] + list(fused.soft_ids) + TEXT[8:]
    torch.testing.assert_close(by_chunks(fused, soft), said_by(model_of("llama"), TEXT), **EXACT)


@pytest.mark.parametrize("arch", ["olmo2", "granite", "mixtral", "gpt2"])
def test_a_layer_that_is_not_known_stays_as_it_is(arch: str) -> None:
    engine = engine_with(model_of(arch))
    assert not any(isinstance(module, FusedLayer) for module in engine.model.modules())


def test_a_layer_that_someone_derived_stays_as_it_is() -> None:
    model = copy.deepcopy(model_of("llama"))
    layer = model.model.layers[1]
    layer.__class__ = type("LlamaDecoderLayer", (type(layer),), {})
    engine = engine_with(model)
    assert fused_of(engine) == [True, False]
    torch.testing.assert_close(by_chunks(engine, TEXT), said_by(model, TEXT), **EXACT)


def test_an_activation_other_than_silu_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    assert fused_of(engine_with(tiny_model("llama", hidden_act="gelu"))) == [False, False]
    assert caplog.records == []


def test_heads_that_are_turned_in_part_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    model = tiny_model("phi3", rope_parameters=rope)
    engine = engine_with(model)
    assert fused_of(engine) == [False, False]
    assert caplog.records == []
    torch.testing.assert_close(by_chunks(engine, TEXT), said_by(model, TEXT), **EXACT)


def test_what_is_not_packed_so_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEAST_BYTES", 8 << 20)
    assert fused_of(engine_with(model_of("llama"))) == [False, False]
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    assert fused_of(engine_with(model_of("llama"), differentiable=True)) == [False, False]
    assert fused_of(engine_with(model_of("llama"))) == [True, True]
    monkeypatch.setattr(packing, "SIBLINGS", ())
    assert fused_of(engine_with(model_of("llama"))) == [False, False]


def test_without_the_product_that_adds_layers_add_themselves(arch: str, monkeypatch) -> None:
    monkeypatch.setattr(packing, "_MULTIPLY_AND_ADD", None)
    assert_as_transformers(engine_with(model_of(arch)), model_of(arch))


@pytest.mark.parametrize("arch", ["llama", "gemma3_text"])
@pytest.mark.parametrize("threads", [3, 7])
def test_no_rows_bits_depend_on_where_threads_share_the_work(arch: str, threads: int) -> None:
    """Wide MLPs of long prompts are cut among threads; a cut within a row would show."""
    model = tiny_model(arch, intermediate_size=200)
    text = random_text(334, seed=2)
    engine = engine_with(model, batch_invariant=True)
    assert all(fused_of(engine))
    known = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole, by_layer = with_streams(engine, [text])
        parts, of_parts = with_streams(engine, [text[at : at + 40] for at in range(0, 334, 40)])
    finally:
        torch.set_num_threads(known)
    # The first layer that differs says where it comes from.
    alike = [torch.equal(*pair) for pair in zip(by_layer, of_parts, strict=True)]
    assert alike == [True, True]
    assert torch.equal(whole, parts)


def with_streams(engine: NativeEngine, pieces: list[list[int]]) -> tuple[Tensor, list[Tensor]]:
    """Logits of a text in pieces, and what each layer gave."""
    told: list[list[Tensor]] = [[] for _ in engine.model.model.layers]
    hooks = [
        layer.register_forward_hook(lambda *call, own=own: own.append(call[2][0]))
        for layer, own in zip(engine.model.model.layers, told, strict=True)
    ]
    cache = engine.new_cache(400)
    logits = torch.cat([feed(engine, cache, piece) for piece in pieces])
    for hook in hooks:
        hook.remove()
    return logits, [torch.cat(own) for own in told]


# --- weights in other formats ------------------------------------------------------


def without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    told = replace(number_formats.cpu(), bfloat16=False)
    monkeypatch.setattr(number_formats, "cpu", lambda: told)


def test_half_precision_weights_run_through_fused_layers(arch: str, monkeypatch) -> None:
    if not number_formats.cpu().half:
        pytest.skip("this CPU has no such kernels")
    without_bfloat16(monkeypatch)
    model = copy.deepcopy(model_of(arch)).to(torch.bfloat16)
    engine = engine_with(model, dtype="bfloat16")
    assert all(fused_of(engine))
    assert isinstance(engine.model.model.layers[0].mlp.down_proj, HalfLinear)
    expected = said_by(model.float(), TEXT)
    assert (by_chunks(engine, TEXT) - expected).norm() / expected.norm() < 1e-3


def test_rounded_weights_run_through_fused_layers(arch: str) -> None:
    if not number_formats.cpu().int8:
        pytest.skip("this CPU has no such kernels")
    fused, stock = (engine_with(model_of(arch), dtype="int8") for _ in range(2))
    assert all(fused_of(fused))
    fused_layers.unfuse(stock.model)
    expected = by_chunks(stock, TEXT)
    assert (by_chunks(fused, TEXT) - expected).norm() / expected.norm() < 0.03


def test_products_of_any_kind_run_through_fused_layers(arch: str) -> None:
    engine = engine_with(model_of(arch), differentiable=True)
    packing.pack(engine.model, InvariantPlain)
    assert fused_layers.fuse(engine.model)
    assert_as_transformers(engine, model_of(arch))


# --- the self-check --------------------------------------------------------------


def turned_back(turn: Any, turned: Tensor, heads: Tensor) -> None:
    into(turn._replace(sin=-turn.sin), turned, heads)


def not_normalized(norm: Any, rows: Tensor) -> Tensor:
    return rows * norm.weight  # type: ignore[no-any-return]


def failing(*_: Any) -> Tensor:
    raise AttributeError("another transformers")


into = fused_layers._Turn.into
MUTANTS = [
    ("_Turn.into", turned_back),
    ("_Norm.__call__", not_normalized),
    ("_Turn.into", failing),
]


@pytest.mark.parametrize(("name", "mutant"), MUTANTS, ids=lambda one: getattr(one, "__name__", one))
def test_wrong_layers_are_found_and_give_way_to_transformers_own(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    arch: str,
    name: str,
    mutant: Callable[..., Tensor],
) -> None:
    monkeypatch.setattr(f"services.engine.native.fused_layers.{name}", mutant)
    with caplog.at_level(logging.WARNING):
        engine = engine_with(model_of(arch))
    assert fused_of(engine) == [False, False]
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith("llama: layers stay as transformers has them (")
    torch.testing.assert_close(by_chunks(engine, TEXT), said_by(model_of(arch), TEXT), **EXACT)


def test_wrong_layers_with_rounded_weights_give_way_too(monkeypatch, caplog, arch: str) -> None:
    if not number_formats.cpu().int8:
        pytest.skip("this CPU has no such kernels")
    monkeypatch.setattr(fused_layers._Turn, "into", turned_back)
    with caplog.at_level(logging.WARNING):
        engine = engine_with(model_of(arch), dtype="int8")
    assert fused_of(engine) == [False, False]
    assert "layers stay as transformers has them (" in caplog.text


@pytest.mark.parametrize("arch", ["mistral", "qwen2"])
def test_a_window_that_a_fused_layer_ignores_is_found(monkeypatch, arch) -> None:
    everything = dict.fromkeys(fused_layers._WINDOWS, fused_layers._no_window)
    monkeypatch.setattr(fused_layers, "_WINDOWS", everything)
    fused_layers._fused.cache_clear()
    sliding = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}
    model = tiny_model(arch, **(sliding if arch == "qwen2" else {}))
    try:
        assert fused_of(engine_with(model)) == [False, False]
    finally:
        fused_layers._fused.cache_clear()


def test_a_model_that_neither_kind_of_layer_fits_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("services.engine.native.layout.Layout._paged", failing)
    with pytest.raises(StartError, match="another transformers"):
        engine_with(model_of("llama"))


# --- copies ----------------------------------------------------------------------


def test_a_copy_is_fused_and_has_nothing_of_the_first(arch: str) -> None:
    engine = engine_with(model_of(arch))
    copied = engine_with(engine.model)
    assert fused_of(copied) == [True, True]
    before = by_chunks(engine, TEXT)
    assert torch.equal(by_chunks(copied, TEXT), before)
    copied.model.model.layers[0].input_layernorm.weight.data *= 2.0
    fused_layers.unfuse(copied.model)
    assert fused_of(engine) == [True, True]
    assert not torch.equal(by_chunks(copied, TEXT), before)
    assert torch.equal(by_chunks(engine, TEXT), before)


def test_weights_names_and_fingerprint_are_those_of_the_model(arch: str) -> None:
    engine = engine_with(model_of(arch))
    weights = model_of(arch).state_dict()
    found = engine.model.state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], value) for name, value in weights.items())
    assert engine_with(engine.model).fingerprint == engine.fingerprint
