"""A model whose ragged logits are not its own is not served."""

from __future__ import annotations

import copy

import pytest
import torch

from services.common.engine import Engine, layout, packing
from services.common.engine.layout import Layout
from services.common.engine.packing import FEW, PackedLinear, worth_packing
from services.common.errors import StartError
from tests.engine.conftest import feed, model_of, random_text, stock_logits
from tests.models import tiny_model


def refused(arch="llama"):
    with pytest.raises(StartError) as refusal:
        Engine.from_model(model_of(arch))
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
    Engine.from_model(model_of("llama"))


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
        Engine.from_model(model)


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
        Engine.from_model(tiny_model(arch))


def test_the_model_given_stays_as_it_was():
    model = model_of("mistral")
    window = model.config.sliding_window
    implementation = model.config._attn_implementation
    Engine.from_model(model)
    assert model.config.sliding_window == window
    assert model.config._attn_implementation == implementation


def test_windows_are_whole_again_after_the_check():
    engine = Engine.from_model(model_of("mistral"))
    assert engine._model.config.sliding_window == 12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("arch", ["llama", "gemma3_text", "gpt2", "mixtral", "opt"])
def test_half_precision_stays_near_float32(arch, dtype):
    model = copy.deepcopy(model_of(arch)).to(dtype)
    engine = Engine.from_model(model)
    text = random_text(20)
    cache = engine.new_cache(32)
    ours, expected = feed(engine, cache, text), stock_logits(arch, text)
    spread = (ours - expected).abs().mean() / expected.std()
    assert spread < (0.25 if arch == "mixtral" else 0.05)
    cache.free()


def packed_head(seed=0):
    """The packed output layer of a model, and its engine; skips where nothing is packed."""
    model = copy.deepcopy(model_of("llama")).to(torch.bfloat16)
    model.lm_head.weight.data += seed
    if not worth_packing(model):
        pytest.skip("this CPU multiplies half precision itself")
    engine = Engine.from_model(model)
    assert isinstance(engine.model.lm_head, PackedLinear)
    return engine.model.lm_head, engine


def test_packed_rows_do_not_depend_on_their_neighbours():
    """From three rows on: one or two, which are not padded, may differ in the last bits."""
    linear, _ = packed_head()
    rows = torch.randn(300, linear.in_features, generator=torch.Generator().manual_seed(0))
    every = linear(rows)
    wrong = [count for count in range(FEW + 1, 301) if not same_rows(linear, rows, every, count)]
    assert wrong == []
    for count in range(1, FEW + 1):
        torch.testing.assert_close(linear(rows[:count]), every[:count], rtol=1e-4, atol=1e-5)


def same_rows(linear, rows, every, count):
    first, last = linear(rows[:count]), linear(rows[None, -count:])[0]
    return torch.equal(first, every[:count]) and torch.equal(last, every[-count:])


def test_one_row_is_multiplied_as_it_is(monkeypatch):
    """Plain decoding: another row would cost time."""
    linear, _ = packed_head()
    given = []
    monkeypatch.setattr(packing, "_MULTIPLY", lambda rows, *_: given.append(rows) or rows)
    row = torch.randn(1, 1, linear.in_features)
    linear(row)
    assert given[0] is row


def test_a_packed_model_can_be_copied():
    _, engine = packed_head()
    copied = Engine.from_model(engine.model)
    text = random_text(9)
    ours, theirs = (feed(one, one.new_cache(16), text) for one in (engine, copied))
    assert torch.equal(ours, theirs)


def test_packed_models_of_other_weights_have_other_fingerprints():
    first, same, other = (Engine.from_model(packed_head(seed)[1].model) for seed in (0, 0, 1))
    assert first.fingerprint == same.fingerprint != other.fingerprint


def test_float32_is_never_packed():
    assert not worth_packing(model_of("llama"))


def test_weights_too_large_for_fp16_are_not_packed():
    model = copy.deepcopy(model_of("llama")).to(torch.bfloat16)
    model.lm_head.weight.data[0, 0] = 1e5
    assert not worth_packing(model)
