"""A model whose ragged logits are not its own is not served."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from services.contract.errors import StartError
from services.engine import number_formats
from services.engine.native import NativeEngine, layout, packing
from services.engine.native.layout import Layout
from services.engine.spec import ModelSpec
from tests.cpus import told
from tests.engine.conftest import feed, model_of, random_text, stock_logits
from tests.models import tiny_model


def refused(arch="llama"):
    with pytest.raises(StartError) as refusal:
        NativeEngine.from_model(model_of(arch))
    return str(refusal.value)


def test_the_figure_and_the_tolerance_are_in_the_refusal(monkeypatch):
    real = Layout.attend
    monkeypatch.setattr(Layout, "attend", lambda *args: real(*args) * 1.05)
    message = refused()
    assert "llama: self-check failed" in message
    assert "(tolerance 1e-03)" in message
    figure = float(message.split(" by ")[1].split()[0])
    assert 1e-3 < figure < 10


def test_a_mask_that_shows_siblings_is_found(monkeypatch):
    monkeypatch.setattr(layout, "_ancestors", lambda p: torch.ones(len(p), len(p)).tril().bool())
    assert "self-check failed" in refused()


def test_a_window_that_is_ignored_is_found(monkeypatch):
    real = Layout.attend
    without = lambda self, *args: real(self, *args[:4], args[4]._replace(window=None))  # noqa: E731
    monkeypatch.setattr(Layout, "attend", without)
    assert "self-check failed" in refused("mistral")
    NativeEngine.from_model(model_of("llama"))


def test_a_window_one_token_too_wide_is_found(monkeypatch):
    real = Layout.attend

    def wider(self, layer, query, key, value, scoring):
        window = scoring.window and scoring.window + 1
        return real(self, layer, query, key, value, scoring._replace(window=window))

    monkeypatch.setattr(Layout, "attend", wider)
    assert "self-check failed" in refused("gemma3_text")


def test_positions_that_ignore_the_past_are_found(monkeypatch):
    monkeypatch.setattr(layout.Piece, "positions", property(lambda self: list(range(self.count))))
    assert "self-check failed" in refused()


def test_nan_does_not_pass():
    model = copy.deepcopy(model_of("llama"))
    model.lm_head.weight.data[0] = torch.nan
    with pytest.raises(StartError, match="by inf"):
        NativeEngine.from_model(model)


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ("gpt_oss", "needs s_aux"),
        ("bloom", "does not take its attention as a function"),
        ("mamba", "0 of 2 layers kept K/V"),
    ],
)
def test_architectures_that_do_not_fit_are_refused(arch, reason):
    with pytest.raises(StartError, match=reason):
        NativeEngine.from_model(tiny_model(arch))


def test_the_model_given_stays_as_it_was():
    model = model_of("mistral")
    window = model.config.sliding_window
    implementation = model.config._attn_implementation
    NativeEngine.from_model(model)
    assert model.config.sliding_window == window
    assert model.config._attn_implementation == implementation


def test_windows_are_whole_again_after_the_check():
    engine = NativeEngine.from_model(model_of("mistral"))
    assert engine._model.config.sliding_window == 12


def packed_head(monkeypatch, seed=0):
    """The fp16 output layer of a model, as on a CPU without bfloat16, and its engine."""
    told(monkeypatch, bfloat16=False)
    model = copy.deepcopy(model_of("llama")).to(torch.bfloat16)
    model.lm_head.weight.data += seed
    if packing.packing_of(model) is None:
        pytest.skip("no FBGEMM here")
    engine = NativeEngine.from_model(model)
    assert isinstance(engine.model.lm_head, packing.HalfLinear)
    return engine.model.lm_head, engine


def blocked(monkeypatch, dtype=torch.float32, arch="llama"):
    """An engine whose model has oneDNN's weights, however small it is."""
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    model = copy.deepcopy(model_of(arch)).to(dtype)
    if packing.packing_of(model) is not packing.BlockedLinear:
        pytest.skip("this CPU, or this PyTorch, does not multiply so")
    return NativeEngine.from_model(model)


def test_packed_rows_do_not_depend_on_their_neighbours(monkeypatch):
    """From three rows on: one or two, which are not padded, may differ in the last bits."""
    linear, _ = packed_head(monkeypatch)
    rows = torch.randn(300, linear.in_features, generator=torch.Generator().manual_seed(0))
    every = linear(rows)
    for count in range(packing.FEW + 1, 301):
        assert same_rows(linear, rows, every, count), count
    for count in range(1, packing.FEW + 1):
        torch.testing.assert_close(linear(rows[:count]), every[:count], rtol=1e-4, atol=1e-5)


def same_rows(linear, rows, every, count):
    first, last = linear(rows[:count]), linear(rows[None, -count:])[0]
    return torch.equal(first, every[:count]) and torch.equal(last, every[-count:])


def test_one_row_is_multiplied_as_it_is(monkeypatch):
    """Plain decoding: another row would cost time."""
    linear, _ = packed_head(monkeypatch)
    given = []
    monkeypatch.setattr(packing, "_MULTIPLY", lambda rows, *_: given.append(rows) or rows)
    row = torch.randn(1, 1, linear.in_features)
    linear(row)
    assert given[0] is row


@pytest.mark.parametrize("half", [True, False])
def test_a_packed_model_can_be_copied(monkeypatch, half):
    engine = packed_head(monkeypatch)[1] if half else blocked(monkeypatch)
    copied = NativeEngine.from_model(engine.model)
    text = random_text(9)
    ours, theirs = (feed(one, one.new_cache(16), text) for one in (engine, copied))
    assert torch.equal(ours, theirs)


def test_packed_models_of_other_weights_have_other_fingerprints(monkeypatch):
    heads = [packed_head(monkeypatch, seed) for seed in (0, 0, 1)]
    first, same, other = (NativeEngine.from_model(engine.model) for _, engine in heads)
    assert first.fingerprint == same.fingerprint != other.fingerprint


def test_weights_that_stay_in_the_caches_are_not_packed():
    model = model_of("llama")
    assert sum(weight.nbytes for weight in model.parameters()) < packing.LEAST_BYTES
    assert packing.packing_of(model) is None
    engine = NativeEngine.from_model(model)
    assert not any(isinstance(module, packing.PackedLinear) for module in engine.model.modules())


@pytest.mark.parametrize("arch", ["llama", "gemma3_text", "gpt2", "mixtral", "opt", "qwen2"])
def test_float32_logits_are_the_same_with_packed_weights(monkeypatch, arch):
    """The self-check compares too; this is beyond its texts, and row by row."""
    text = random_text(30)
    whole, packed = NativeEngine.from_model(model_of(arch)), blocked(monkeypatch, arch=arch)
    linears = [module for module in model_of(arch).modules() if type(module) is torch.nn.Linear]
    found = [one for one in packed.model.modules() if isinstance(one, packing.PackedLinear)]
    assert len(found) == len(linears) > 0
    cache = packed.new_cache(40)
    rows = [feed(packed, cache, part) for part in (text[:12], text[12:13], text[13:18], text[18:])]
    torch.testing.assert_close(
        torch.cat(rows), feed(whole, whole.new_cache(40), text), rtol=1e-4, atol=1e-4
    )


def test_packed_float32_weights_keep_every_value_and_the_fingerprint(monkeypatch):
    engine = blocked(monkeypatch)
    weights = model_of("llama").state_dict()
    assert {name: value.shape for name, value in engine.model.state_dict().items()} == {
        name: value.shape for name, value in weights.items()
    }
    for name, value in engine.model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    again = NativeEngine.from_model(engine.model)
    assert (
        again.fingerprint
        == engine.fingerprint
        == NativeEngine.from_model(model_of("llama")).fingerprint
    )


class Siblings(torch.nn.Module):
    """Three modules that take the same rows, in the names that architectures give them."""

    def __init__(self, dtype, biases=(True, True, True)):
        super().__init__()
        widths = dict(zip(("q_proj", "k_proj", "v_proj"), (96, 32, 32), strict=True))
        for (name, width), bias in zip(widths.items(), biases, strict=True):
            setattr(self, name, torch.nn.Linear(64, width, bias=bias, dtype=dtype))

    def forward(self, rows):
        return [self.q_proj(rows), self.k_proj(rows), self.v_proj(rows)]


needs_kernels = pytest.mark.skipif(
    not (number_formats.cpu().blocked and number_formats.cpu().half),
    reason="this CPU, or this PyTorch, does not multiply so",
)


@needs_kernels
@pytest.mark.parametrize("arch", ["llama", "gemma3_text", "qwen2", "phi3"])
def test_a_model_that_drafts_may_be_rounded_and_says_nearly_the_same(arch):
    engine = NativeEngine.from_model(model_of(arch), spec=ModelSpec(arch, dtype="int8"))
    assert (engine.dtype, engine.model.dtype) == ("int8", torch.float32)
    linears = [one for one in engine.model.modules() if isinstance(one, packing.PackedLinear)]
    assert len(linears) == sum(type(m) is torch.nn.Linear for m in model_of(arch).modules())
    text = random_text(30)
    cache = engine.new_cache(40)
    ours = torch.cat([feed(engine, cache, part) for part in (text[:20], text[20:21], text[21:])])
    expected = stock_logits(arch, text)
    spread = (ours - expected).abs().mean() / expected.std()
    assert 0 < spread < 0.1
    plain = NativeEngine.from_model(model_of(arch))
    assert engine.fingerprint != plain.fingerprint


@needs_kernels
def test_a_token_of_huge_values_leaves_the_others_their_own():
    linear = torch.nn.Linear(64, 96)
    rounded = packing.ByteLinear(linear)
    rows = torch.randn(1, 8, 64)
    alone = rounded(rows)
    rows[0, 3] *= 1e4
    beside = rounded(rows)
    torch.testing.assert_close(beside[0, 4:], alone[0, 4:], rtol=0.02, atol=0.02)
    expected = linear(rows)
    assert (beside - expected).norm() / expected.norm() < 0.03
    assert rounded(rows[:, :0]).shape == (1, 0, 96)
    torch.testing.assert_close(rounded.whole(), linear.weight, rtol=0, atol=0.002)


@needs_kernels
@pytest.mark.parametrize("bias", [True, False])
def test_of_rows_of_two_bytes_nothing_but_the_weights_is_rounded(bias):
    linear = torch.nn.Linear(77, 51, bias=bias)
    linear.weight.data[7] = 0
    wide, narrow = packing.WideByteLinear(linear), packing.ByteLinear(linear)
    rows = torch.randn(9, 77)
    rows[4, 11] = 300.0
    exact = F.linear(rows, wide.whole(), linear.bias)
    assert (wide(rows) - exact).norm() / exact.norm() < 1e-3 < (narrow(rows) - exact).norm()
    assert torch.equal(wide.whole()[7], torch.zeros(77))


@needs_kernels
@pytest.mark.parametrize("kind", [packing.ByteLinear, packing.WideByteLinear])
def test_a_row_of_int8_is_the_same_to_the_bit_in_any_company(kind):
    packed = kind(torch.nn.Linear(576, 192))
    rows = torch.randn(70, 576) * torch.logspace(-3, 3, 70)[:, None]
    alone = torch.cat([packed(row[None]) for row in rows])
    for count in (2, 3, 5, 8, 13, 70):
        assert torch.equal(packed(rows[:count]), alone[:count])


@needs_kernels
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_weights_that_are_no_numbers_end_the_start(monkeypatch, value, dtype):
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    model = copy.deepcopy(model_of("llama"))
    model.model.layers[1].mlp.down_proj.weight.data[3, 3] = value
    with pytest.raises(StartError, match="weights are not all finite"):
        NativeEngine.from_model(model, spec=ModelSpec("llama", dtype=dtype))


def test_many_rows_of_fp16_are_shared_out_and_the_same(monkeypatch):
    if not number_formats.cpu().half:
        pytest.skip("this CPU has no FBGEMM")
    packed = packing.HalfLinear(torch.nn.Linear(576, 192))
    rows = torch.randn(3, 97, 576)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = packed(rows)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with torch.inference_mode():
        assert torch.equal(packed(rows), alone)


def test_weights_are_not_rounded_where_nothing_multiplies_them(monkeypatch):
    told(monkeypatch, int8=False)
    with pytest.raises(StartError, match="dtype int8 needs FBGEMM, which this CPU has not"):
        NativeEngine.from_model(model_of("llama"), spec=ModelSpec("llama", dtype="int8"))


KINDS = [packing.BlockedLinear, packing.HalfLinear, packing.ByteLinear]


@needs_kernels
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_modules_that_take_the_same_rows_are_multiplied_once_and_as_if_alone(monkeypatch, kind):
    plain = Siblings(torch.float32)
    joined, alone = copy.deepcopy(plain), copy.deepcopy(plain)
    packing.pack(joined, kind)
    monkeypatch.setattr(packing, "SIBLINGS", ())
    packing.pack(alone, kind)
    assert all(isinstance(module, packing.PartLinear) for module in joined.children())
    assert all(type(module) is kind for module in alone.children())
    products = []
    whole = joined.q_proj._product.packed
    monkeypatch.setattr(type(whole), "forward", counted(type(whole).forward, products))
    for count in (1, 3, 5, 24, 70):
        rows = torch.randn(1, count, 64)
        products.clear()
        found = joined(rows)
        assert len(products) == 1
        for ours, theirs in zip(found, alone(rows), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    # The same rows once more, changed where they are: nothing was kept.
    before = joined(rows)
    rows += 1.0
    assert not torch.equal(joined(rows)[2], before[2])
    assert joined.state_dict().keys() == plain.state_dict().keys()
    for name, value in joined.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-3, atol=2e-3)


def counted(forward, products):
    def count(self, rows):
        products.append(rows)
        return forward(self, rows)

    return count


@needs_kernels
def test_a_product_of_other_rows_is_never_given_to_a_sibling_that_was_left_out():
    module = Siblings(torch.float32)
    packing.pack(module, packing.BlockedLinear)
    first, second = torch.randn(2, 64), torch.randn(2, 64)
    module.q_proj(first)
    _, key, _ = module(second)
    assert torch.equal(key, module(second.clone())[1])


@needs_kernels
def test_a_copy_has_products_of_its_own_and_its_parts_share_them():
    module = Siblings(torch.float32)
    packing.pack(module, packing.BlockedLinear)
    twin = copy.deepcopy(module)
    assert twin.q_proj._product is twin.v_proj._product is not module.q_proj._product
    assert twin.q_proj._product.packed is module.q_proj._product.packed


@needs_kernels
def test_siblings_of_another_kind_are_packed_alone():
    module = Siblings(torch.float32, biases=(True, False, True))
    rows = torch.randn(3, 64)
    expected = module(rows)
    packing.pack(module, packing.BlockedLinear)
    assert all(type(child) is packing.BlockedLinear for child in module.children())
    for ours, theirs in zip(module(rows), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_what_gradients_go_through_is_not_packed(monkeypatch):
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    spec = ModelSpec("llama", kv_capacity_tokens=64, differentiable=True)
    engine = NativeEngine.from_model(model_of("llama"), spec=spec)
    assert not any(isinstance(module, packing.PackedLinear) for module in engine.model.modules())


def test_packed_weights_that_multiply_otherwise_are_refused(monkeypatch):
    monkeypatch.setattr(packing, "_MULTIPLY_BLOCKED", lambda rows, weight, *_: 2 * rows)
    with pytest.raises(StartError, match="packed weights: products differ by"):
        packing.BlockedLinear(torch.nn.Linear(8, 8))


def test_weights_too_large_for_fp16_are_float32_and_all_others_packed(monkeypatch):
    told(monkeypatch, bfloat16=False)
    model = copy.deepcopy(model_of("llama")).to(torch.bfloat16)
    model.lm_head.weight.data[0, 0] = 1e5
    told(monkeypatch, bfloat16=False, half=True)
    engine = NativeEngine.from_model(model)
    assert type(engine.model.lm_head) is torch.nn.Linear
    assert isinstance(engine.model.model.layers[0].mlp.down_proj, packing.HalfLinear)
