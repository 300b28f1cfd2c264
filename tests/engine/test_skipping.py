"""Forwards with sub-layers left out: what they compute, and what they leave in K/V."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from services.contract.errors import StartError
from services.engine.native import NativeEngine, packing
from services.engine.native.stack import stack_path
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask, every_second, middle_half, whole
from tests.engine import conftest as kit
from tests.engine.conftest import CLOSE, feed, model_of, random_text, stock_logits
from tests.models import tiny_model
from tests.tries import tries

MASKS = [
    SkipMask.of(2, attention=[0]),
    SkipMask.of(2, attention=[1], mlp=[0]),
    SkipMask.of(2, mlp=[0, 1]),
    SkipMask.of(2, attention=[0], mlp=[0]),
    SkipMask.of(2, attention=[0, 1]),
    SkipMask.of(2, attention=[0, 1], mlp=[0, 1]),
]
ATTENTION_NAMES = {"gpt2": "attn", "gpt_neox": "attention"}
MLP_NAMES = {"opt": "fc2"}


@contextmanager
def silenced(arch: str, mask: SkipMask) -> Iterator[Any]:
    """Transformers' own model, the outputs of skipped sub-layers replaced by zeros."""
    model = model_of(arch)
    layers = model.get_submodule(stack_path(model))
    names = ((mask.attention, ATTENTION_NAMES.get(arch, "self_attn")),)
    names += ((mask.mlp, MLP_NAMES.get(arch, "mlp")),)
    hooks = [
        getattr(layers[number], name).register_forward_hook(_zeros)
        for numbers, name in names
        for number in numbers
    ]
    try:
        yield model
    finally:
        for hook in hooks:
            hook.remove()


def _zeros(_: nn.Module, args: Any, output: Any) -> Any:
    if isinstance(output, tuple):
        return (torch.zeros_like(output[0]), *output[1:])
    return torch.zeros_like(output)


def silenced_logits(arch: str, mask: SkipMask, text: Sequence[int]) -> Tensor:
    with silenced(arch, mask) as model:
        return kit.said_by(model, text)


# --- masks ------------------------------------------------------------------------


def test_the_sets_that_searches_start_from() -> None:
    assert whole(6).empty
    assert every_second(6) == SkipMask.of(6, [1, 3], [1, 3])
    assert every_second(2).empty
    assert middle_half(8) == SkipMask.of(8, range(2, 6), range(2, 6))
    assert middle_half(30) == SkipMask.of(30, range(7, 22), range(7, 22))
    assert every_second(30).share == pytest.approx(28 / 60)


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_that_is_not_there_cannot_be_skipped(layer: int) -> None:
    with pytest.raises(ValueError, match=rf"layer {layer} is skipped, there are 0\.\.1"):
        SkipMask.of(2, mlp=[layer])


# --- logits -----------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_skipped_sub_layer_adds_nothing(arch: str, engine: NativeEngine, mask: SkipMask) -> None:
    text = random_text(20)
    cache = engine.new_cache(32)
    rows = [engine.forward([Segment(cache, part)], mask)[0] for part in (text[:13], text[13:])]
    torch.testing.assert_close(torch.cat(rows), silenced_logits(arch, mask, text), **CLOSE)


def test_an_empty_mask_is_the_plain_forward_bit_for_bit(arch: str, engine: NativeEngine) -> None:
    text = random_text(9)
    rows = []
    for mask in (None, whole(2)):
        cache = engine.new_cache(16)
        rows += engine.forward([Segment(cache, text)], mask)
    assert torch.equal(*rows)


def test_a_forward_with_a_mask_leaves_the_model_as_it_was(arch: str, engine: NativeEngine) -> None:
    text = random_text(12)
    modules = list(engine._model.modules())
    for mask in MASKS:
        cache = engine.new_cache(16)
        engine.forward([Segment(cache, text)], mask)
    assert list(engine._model.modules()) == modules
    cache = engine.new_cache(16)
    torch.testing.assert_close(feed(engine, cache, text), stock_logits(arch, text), **CLOSE)


def test_a_forward_that_fails_leaves_the_model_as_it_was(llama: NativeEngine) -> None:
    llama.skipper()
    modules = list(llama._model.modules())
    cache = llama.new_cache(16)

    def fail(*_: Any) -> None:
        raise RuntimeError("the device is on fire")

    hook = llama._model.get_output_embeddings().register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="on fire"):
        llama.forward([Segment(cache, [5, 6])], MASKS[1])
    hook.remove()
    assert cache.length == 0
    assert list(llama._model.modules()) == modules
    torch.testing.assert_close(feed(llama, cache, [5, 6]), stock_logits("llama", [5, 6]), **CLOSE)


def test_sessions_and_trees_run_together_with_a_mask(llama: NativeEngine) -> None:
    mask, texts = MASKS[1], [random_text(7), random_text(5, seed=1)]
    caches = [llama.new_cache(32) for _ in texts]
    llama.forward([Segment(c, t) for c, t in zip(caches, texts, strict=True)], mask)
    tree = Segment(caches[0], [9, 10, 11], parents=[-1, -1, 1])
    rows, chain = llama.forward([tree, Segment(caches[1], [12])], mask)
    for row, path in zip(rows, ([9], [10], [10, 11]), strict=True):
        expected = silenced_logits("llama", mask, [*texts[0], *path])[-1]
        torch.testing.assert_close(row, expected, **CLOSE)
    expected = silenced_logits("llama", mask, [*texts[1], 12])[-1:]
    torch.testing.assert_close(chain, expected, **CLOSE)


def test_packed_linear_modules_can_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    model = tiny_model("llama").to(torch.bfloat16)
    if packing.packing_of(model) is None:
        pytest.skip("nothing is packed here")
    engine = kit.engine_with(model, 64, dtype="bfloat16")
    assert any(isinstance(module, packing.PackedLinear) for module in engine._model.modules())
    text, mask = random_text(9), MASKS[1]
    [row] = engine.forward([Segment(engine.new_cache(16), text)], mask)
    expected = silenced_logits("llama", mask, text)
    assert float((row - expected).norm() / expected.norm()) < 0.05


# --- K/V --------------------------------------------------------------------------


def test_a_layer_never_attends_to_a_token_that_it_did_not_read(llama: NativeEngine) -> None:
    cache = llama.new_cache(32)
    feed(llama, cache, [5, 6, 7])
    llama.forward([Segment(cache, [8])], SkipMask.of(2, attention=[1]))
    assert cache.lacking == {1}
    for mask in (None, SkipMask.of(2, attention=[0]), SkipMask.of(2, mlp=[0, 1])):
        with pytest.raises(ValueError, match=r"layers \[1\] lack K/V"):
            llama.forward([Segment(cache, [9])], mask)
    assert cache.length == 4
    llama.forward([Segment(cache, [9])], SkipMask.of(2, attention=[0, 1]))
    assert cache.lacking == {0, 1}
    cache.rollback(4)
    assert cache.lacking == {1}
    branch = cache.fork(32)
    cache.rollback(3)
    assert cache.lacking == frozenset()
    rows = feed(llama, cache, [8, 9])
    torch.testing.assert_close(rows, stock_logits("llama", [5, 6, 7, 8, 9])[3:], **CLOSE)
    assert branch.lacking == {1}


def test_a_kept_path_lacks_what_its_tree_lacked(llama: NativeEngine) -> None:
    cache = llama.new_cache(32)
    feed(llama, cache, [5, 6])
    llama.forward([Segment(cache, [7, 8, 9], parents=[-1, -1, 1])], SkipMask.of(2, attention=[0]))
    cache.keep_path(2, [1, 2])
    assert cache.lacking == {0}
    cache.rollback(2)
    llama.forward([Segment(cache, [7, 8, 9], parents=[-1, -1, 1])], SkipMask.of(2, attention=[0]))
    cache.keep_path(2, [])
    assert cache.lacking == frozenset()


READ = st.lists(st.integers(3, 319), min_size=1, max_size=6)
LAYERS = st.frozensets(st.integers(0, 1))
STEP = st.tuples(READ, st.integers(0, 8), LAYERS, LAYERS)
STEPS = st.lists(STEP, min_size=1, max_size=8)


@pytest.mark.parametrize("arch", ["llama", "mistral", "gemma3_text"])
@tries(20)
@given(steps=STEPS)
def test_any_steps_and_rollbacks_give_the_logits_of_the_same_masks_afresh(arch, steps) -> None:
    """Each token's K/V is that of its own mask; a step that would miss some is refused."""
    engine = kit.engine_of(arch)
    cache, read = engine.new_cache(128), []
    for tokens, undo, attention, mlp in steps:
        mask = SkipMask(2, attention, mlp)
        lacking = frozenset().union(*(before.attention for _, before in read))
        if lacking <= attention:
            engine.forward([Segment(cache, tokens)], mask)
            read += [(token, mask) for token in tokens]
        else:
            with pytest.raises(ValueError, match="lack K/V"):
                engine.forward([Segment(cache, tokens)], mask)
        read = read[: max(0, len(read) - undo)]
        cache.rollback(len(read))
    every = SkipMask.of(2, attention=[0, 1])
    last = SkipMask(2, cache.lacking)
    fresh = engine.new_cache(128)
    for token, mask in read:
        engine.forward([Segment(fresh, [token])], mask)
    for probe in (last, every):
        ours, theirs = (engine.forward([Segment(c, [7])], probe)[0] for c in (cache, fresh))
        torch.testing.assert_close(ours, theirs, **CLOSE)
    cache.free()
    fresh.free()


# --- refusals ---------------------------------------------------------------------


def test_a_mask_of_another_size_is_refused(llama: NativeEngine) -> None:
    cache = llama.new_cache(8)
    with pytest.raises(ValueError, match="a mask of 3 layers for a model of 2"):
        llama.forward([Segment(cache, [5])], SkipMask.of(3, mlp=[0]))
    assert cache.length == 0


def test_a_stream_that_is_normalised_itself_cannot_skip() -> None:
    model = tiny_model("opt", do_layer_norm_before=False)
    engine = kit.engine_with(model, 64, name="post-norm")
    with pytest.raises(StartError, match=r"post-norm: its sub-layers cannot be skipped \(a layer"):
        engine.skipper()


def test_a_norm_with_a_bias_after_a_sub_layer_cannot_skip() -> None:
    model = tiny_model("olmo2")
    for layer in model.model.layers:
        norm = nn.LayerNorm(64)
        nn.init.constant_(norm.bias, 0.1)
        layer.post_attention_layernorm = norm
    engine = kit.engine_with(model, 64, name="biased")
    with pytest.raises(StartError, match="biased: its sub-layers cannot be skipped"):
        engine.skipper()


def test_a_layer_without_an_mlp_of_its_own_cannot_skip() -> None:
    model = tiny_model("llama")
    engine = kit.engine_with(model, 64, name="odd")
    layer = engine._model.model.layers[1]
    layer.unheard_of = layer._modules.pop("mlp")
    with pytest.raises(StartError, match="layer 1 has no MLP of its own, so it cannot be skipped"):
        engine.skipper()
