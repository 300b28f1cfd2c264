"""An EAGLE-3 head for a tiny target: its steps, its training, and the folder that is served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from services.engine.native import NativeEngine
from services.engine.native.loading import read_folder
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from services.training.head.beginning import Sample, begin
from services.training.head.head import EagleHead, default_layers, fresh_head, shape_of
from services.training.head.learner import (
    Drafting,
    EagleLearner,
    Rope,
    columns_of,
    lesson_of,
)
from services.training.head.states import (
    StateStore,
    compute_states,
    missing_states,
    states_path,
)
from services.training.head.stored import as_stored, read_head, rounded
from services.training.head.train import needs_of, train_head
from services.training.reporting import Stopped
from services.training.target import read_target
from services.training.texts import LAW_TOKENS, Text, load_texts, shards
from tests.models import tiny_model_folder
from tests.training.kit import Quiet, StopsAt, card, config, refused, small, weights

IDS = torch.arange(0, 320, 2)


@pytest.fixture(scope="module")
def model(target):
    return read_folder(target, ModelSpec(str(target)))


def made_up(number: int, length: int, first: int) -> Text:
    """A text with a distribution after each prefix from `first` on."""
    chance = np.random.default_rng(number)
    prefixes = np.arange(first, length + 1, dtype=np.int32)
    ids = chance.integers(0, 320, (len(prefixes), LAW_TOKENS)).astype(np.int32)
    logs = np.full(ids.shape, -np.log(LAW_TOKENS), dtype=np.float16)
    return Text(number, chance.integers(0, 320, length).astype(np.int32), prefixes, ids, logs)


# --- Steps ------------------------------------------------------------------------------


def drafted_alone(head: EagleHead, embeddings, text: Text, states, at: int, steps: int):
    """The features of `steps` drafts that begin with row `at`, one row after the other."""
    layer, shape = head.layer, head.shape
    attention = layer.self_attn
    keys, values, out = [], [], []
    features = list(head.fc(states[: at + 1]))
    for place in range(at + steps):
        feature = features[place] if place <= at else out[-1]
        row = layer.rows(embeddings[text.token_ids[place + 1]], feature)[None]
        rope = Rope(torch.tensor([place]), shape.head_dim, shape.theta)
        split = [proj(row).unflatten(-1, (-1, shape.head_dim)) for proj in heads_of(attention)]
        keys.append(rope(split[1])[0])
        values.append(split[2][0])
        if place < at:
            continue
        repeat = shape.heads // shape.kv_heads
        k, v = (torch.stack(kept).repeat_interleave(repeat, 1) for kept in (keys, values))
        shares = torch.einsum("hd,thd->ht", rope(split[0])[0], k) / shape.head_dim**0.5
        mixed = torch.einsum("ht,thd->hd", shares.softmax(-1), v)
        out.append(layer.after(feature, mixed.flatten()))
    return out


def heads_of(attention):
    return attention.q_proj, attention.k_proj, attention.v_proj


def test_steps_learn_what_drafting_computes_one_row_after_the_other(target, model):
    shape = shape_of(model.config, (0, 1, 2), len(IDS))
    head = fresh_head(shape, model, IDS, seed=3)
    embeddings = model.get_input_embeddings().weight.detach()
    texts = [made_up(0, 9, 4), made_up(1, 14, 5)]
    kept = {t.number: torch.randn(len(t.token_ids), shape.state_width) for t in texts}
    lesson = lesson_of(texts, lambda number, count: kept[number][:count], columns_of(IDS, 320))
    with torch.no_grad():
        steps = list(Drafting(head, embeddings, lesson).steps(3))
        for place, text in enumerate(texts):
            for at in range(len(text.token_ids) - 3):
                alone = drafted_alone(head, embeddings, text, kept[text.number], at, 3)
                for step, (features, one) in enumerate(zip(steps, alone, strict=True)):
                    row = features[place, at + step]
                    torch.testing.assert_close(row, one, rtol=1e-4, atol=1e-4)


def test_a_row_learns_the_distribution_after_the_token_that_it_embeds(model):
    text = made_up(0, 10, 4)
    lesson = lesson_of([text], lambda _, count: torch.zeros(count, 4), columns_of(IDS, 320))
    assert lesson.next_ids[0, lesson.rows].tolist() == text.token_ids[3:10].tolist()
    assert lesson.rows.tolist() == list(range(2, 9))
    assert lesson.texts.tolist() == [0] * 7
    known = text.law_ids[0] % 2 == 0
    assert (lesson.probabilities[0].numpy() > 0).tolist() == known.tolist()


def test_texts_without_a_distribution_to_learn_are_left_out():
    short = Text(*[5, *(getattr(made_up(0, 3, 1), n)[:1] for n in made_up(0, 3, 1).__slots__[1:])])
    states = lambda _, count: torch.zeros(count, 4)  # noqa: E731
    assert lesson_of([short], states, columns_of(IDS, 320)) is None
    both = lesson_of([short, made_up(1, 9, 4)], states, columns_of(IDS, 320))
    assert len(both.states) == 1


def test_a_head_begins_with_its_targets_norm_and_output_rows(model):
    head = fresh_head(shape_of(model.config, (0, 1, 2), len(IDS)), model, IDS, seed=0)
    assert torch.equal(head.norm.weight, model.model.norm.weight)
    assert torch.equal(head.lm_head.weight, model.get_output_embeddings().weight[IDS])


def test_a_head_begins_as_the_linear_forecast_of_the_next_state(model):
    """Where the next state is linear in this one and the next token, it is found."""
    shape = shape_of(model.config, (0, 1, 2), len(IDS))
    head = fresh_head(shape, model, IDS, seed=0)
    chance = torch.Generator().manual_seed(1)
    states = torch.randn(3000, shape.state_width, generator=chance)
    embeddings = torch.randn(3000, shape.width, generator=chance)
    now = states[:, : shape.width] + states[:, shape.width : 2 * shape.width]
    layer = head.layer
    step = torch.randn(shape.width, 2 * shape.width, generator=chance) / shape.width**0.5
    then = (now + layer.rows(embeddings, now) @ step.T).detach()
    begin(head, Sample(states, embeddings, now, then), seed=0)
    features = head.fc(states)
    torch.testing.assert_close(features, now, atol=0.05, rtol=0)
    values = layer.self_attn.v_proj(layer.rows(embeddings, features))
    forecast = layer.after(features, values)
    off = (forecast.detach() - then).square().mean() / (then - now).square().mean()
    assert float(off) < 0.01


def test_each_row_begins_by_attending_to_itself(model):
    shape = shape_of(model.config, (0, 1, 2), len(IDS))
    head = fresh_head(shape, model, IDS, seed=0)
    chance = torch.Generator().manual_seed(2)
    rows = torch.randn(200, shape.width, generator=chance)
    states = torch.randn(200, shape.state_width, generator=chance)
    begin(head, Sample(states, rows, rows, rows), seed=0)
    both = head.layer.rows(rows, rows)
    queries, keys = (
        proj(both).unflatten(-1, (-1, shape.head_dim))
        for proj in (head.layer.self_attn.q_proj, head.layer.self_attn.k_proj)
    )
    logits = torch.einsum("nhd,mhd->hnm", queries, keys) / shape.head_dim**0.5
    own = logits.diagonal(dim1=1, dim2=2)
    assert float((logits.argmax(-1) == torch.arange(200)).float().mean()) > 0.8
    assert own.detach().mean().item() == pytest.approx(14.0, abs=2.0)


def test_states_are_those_of_a_low_a_middle_and_a_high_layer():
    assert default_layers(30) == (2, 15, 27)
    assert default_layers(2) == (0, 1, 2)
    assert default_layers(1) == (0, 1)


# --- States -----------------------------------------------------------------------------


def test_states_on_disk_are_the_engines_whatever_texts_ran_beside(finished, engine):
    folder = finished.work_folder / "texts"
    store = StateStore(folder)
    engine.watch((0, 1, 2))
    for text in list(load_texts(folder))[:5]:
        tokens = text.token_ids.tolist()
        cache = engine.new_cache(len(tokens))
        _, [states] = engine.forward_with_states([Segment(cache, tokens, logits_from=len(tokens))])
        cache.free()
        torch.testing.assert_close(
            store(text.number, len(tokens)).float(), states.float(), rtol=0.02, atol=0.02
        )


def test_states_are_computed_for_shards_that_have_none_of_these_layers(finished, engine, tmp_path):
    folder = finished.work_folder / "texts"
    assert missing_states(folder, (0, 1, 2)) == []
    assert missing_states(folder, (0, 1)) == shards(folder)
    copy = tmp_path / shards(folder)[0].name
    copy.write_bytes(shards(folder)[0].read_bytes())
    assert missing_states(tmp_path, (1,)) == [copy]
    compute_states(engine, (1,), copy)
    assert missing_states(tmp_path, (1,)) == []
    assert {rows.shape[1] for rows in load_file(states_path(copy)).values()} == {64}


# --- The whole run ----------------------------------------------------------------------


def test_the_trained_head_beats_its_untrained_start_at_every_step(finished):
    made = card(finished)
    for figure in ("acceptance", "greedy"):
        assert len(made[figure]) == 3
    for learnt, fresh in zip(made["acceptance"], made["untrained_acceptance"], strict=True):
        assert learnt > fresh + 0.015
    assert made["positions"] >= finished.positions


def test_its_folder_is_one_of_the_public_layout_with_card_and_curve(finished):
    names = {path.name for path in finished.out.iterdir()}
    assert names == {"config.json", "model.safetensors", "README.md", "acceptance.svg"}
    assert len({path.stat().st_mode for path in finished.out.iterdir()}) == 1
    assert {path.name for path in finished.out.parent.iterdir()} == {"out", "out.work"}
    told = config(finished)
    assert told["speculators_model_type"] == "eagle3"
    assert told["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    assert told["norm_before_residual"] is False
    assert told["paceline"]["target_weights"] == read_target(finished.target).weights
    text = (finished.out / "README.md").read_text()
    assert f"{card(finished)['acceptance'][0]:.3f}" in text
    assert "{" not in text


def test_columns_stand_for_the_tokens_that_d2t_and_t2d_name(finished):
    tensors = load_file(finished.out / "model.safetensors")
    ids = torch.arange(200) + tensors["d2t"]
    assert tensors["t2d"].nonzero().flatten().tolist() == ids.tolist()
    assert tensors["lm_head.weight"].shape == (200, 64)
    assert not any("embed_tokens" in name for name in tensors)


@pytest.mark.parametrize("storage", ["bfloat16", "int8"])
def test_the_figures_of_the_card_are_those_of_the_head_as_it_is_stored(
    finished, model, tmp_path, storage
):
    again = replace(finished, out=tmp_path / "out", storage=storage, work=finished.work_folder)
    train_head(again, Quiet())
    tensors = load_file(again.out / "model.safetensors")
    head, ids = read_head(again.out)
    assert (tensors["fc.weight"].dtype is torch.int8) == (storage == "int8")
    assert ("quantization_config" in config(again)) == (storage == "int8")
    embeddings = model.get_input_embeddings().weight.detach()
    store = StateStore(finished.work_folder / "texts")
    learner = EagleLearner(head, ids, embeddings, store, (1.0, 0.8, 0.6))
    texts = sorted(load_texts(finished.work_folder / "texts"), key=lambda text: text.number)
    held = [text for text in texts if text.number % 40 == 7][: card(again)["held_out_texts"]]
    scores = learner.scores(held)
    assert card(again)["acceptance"] == pytest.approx([s.acceptance for s in scores], abs=1e-4)
    assert card(again)["greedy"] == pytest.approx([s.greedy for s in scores], abs=1e-4)


def test_int8_is_at_most_half_a_step_off():
    values = torch.randn(6, 40) * torch.tensor([1e-3, 0.1, 1.0, 5.0, 40.0, 0.0])[:, None]
    codes, scales = rounded(values)
    assert codes.dtype is torch.int8
    assert scales.shape == (6, 1)
    assert bool(((codes * scales.float() - values).abs() <= 0.75 * scales.float()).all())


def test_a_head_that_is_not_finite_is_not_stored(model):
    head = fresh_head(shape_of(model.config, (0, 1, 2), len(IDS)), model, IDS, seed=0)
    with torch.no_grad():
        head.norm.weight[3] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        as_stored(head, "int8")


def test_a_run_that_was_stopped_at_its_states_ends_with_the_same_bytes(finished, tmp_path):
    options = small(finished.target, tmp_path / "out")
    with pytest.raises(Stopped):
        train_head(options, StopsAt("states of the target, files", 1))
    assert not options.out.exists()
    train_head(options, Quiet())
    assert weights(options) == weights(finished)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"step_weights": ()}, "--step-weights: needed are 1 to 8 numbers above 0"),
        ({"step_weights": (1.0, 0.0)}, "--step-weights: needed are 1 to 8 numbers above 0"),
        ({"layers": (0, 3)}, "give some of 0 to 2, ascending"),
        ({"layers": (1, 0)}, "give some of 0 to 2, ascending"),
        ({"head_tokens": 321}, "--head-tokens: 321 is not allowed"),
        ({"learning_rate": 0.0}, "--learning-rate: 0.0 is not allowed"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(target, tmp_path, changed, told):
    assert told in refused(train_head, small(target, tmp_path / "out", **changed))


def test_the_disk_must_hold_the_states_of_all_tokens(target, tmp_path):
    options = small(target, tmp_path / "out")
    # 64 tokens of a text for 40 distributions, three states of 64, two bytes each.
    assert needs_of(options, read_target(str(target))).disk > 2400 * 64 / 40 * 3 * 64 * 2


def test_a_target_of_another_architecture_gets_a_head_too(tmp_path):
    folder = tiny_model_folder(tmp_path / "gpt2", "gpt2")
    options = small(folder, tmp_path / "out", write=600, train=400)
    train_head(options, Quiet())
    assert card(options)["positions"] >= 400
    engine = NativeEngine.load(ModelSpec(str(folder)))
    assert engine.vocab_size == config(options)["transformer_layer_config"]["vocab_size"]
