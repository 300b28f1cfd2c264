"""Heads on disk: two layouts, one head; and whatever may be wrong with a folder."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.contract.errors import StartError
from services.engine import start
from services.engine.checkpoint.files import weights_digest
from services.engine.checkpoint.heads import is_head
from services.engine.eagle.engine import EagleEngine
from services.engine.eagle.loading import load_head
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.engine.eagle import kit
from tests.engine.eagle.kit import make, states, tokens
from tests.models import tiny_model_folder

MADE = make(shape={"hidden_size": 64}, draft_vocab_size=40)
Save = Callable[..., Path]
LAYOUTS: list[Save] = [kit.save_speculators, kit.save_specforge]


def load(folder: Path, target: Path, dtype: str = "float32") -> EagleEngine:
    return load_head(ModelSpec(str(folder), dtype=dtype, base=str(target), threads=1))


def said(engine: EagleEngine) -> torch.Tensor:
    cache = engine.new_cache(60)
    cache.anchor(0, states(5, MADE))
    [rows] = engine.forward([Segment(cache, tokens(8), logits_from=1)])
    return rows


def test_both_layouts_of_a_head_say_the_same(target: Path, tmp_path: Path) -> None:
    rows = [said(load(save(MADE, tmp_path / save.__name__), target)) for save in LAYOUTS]
    assert torch.equal(*rows)
    world = kit.Reference(MADE)
    row, known = None, states(5, MADE)
    for position, token in enumerate(tokens(8)):
        state = known[position - 1] if 1 <= position <= 5 else None
        row = world.compute(kit.Row(token, position, row, state))
    assert row is not None
    assert row.logits is not None
    torch.testing.assert_close(rows[0][-1], row.logits.float(), atol=2e-4, rtol=1e-4)


def test_an_engine_says_what_the_head_is_for(target: Path, tmp_path: Path) -> None:
    engine = load(kit.save_speculators(MADE, tmp_path / "head"), target)
    assert engine.layers == kit.LAYERS
    assert engine.state_width == 3 * 64
    assert engine.vocab_size == 320
    assert engine.max_context_length == 512
    ids = MADE.tensors["t2d"].nonzero().flatten()
    assert engine.head_ids is not None
    assert torch.equal(engine.head_ids, ids)
    assert engine.bundle is not None
    assert engine.parallel == 0
    assert len(engine.fingerprint) == 64
    assert engine.fingerprint != load(tmp_path / "head", target, "bfloat16").fingerprint


def test_a_head_without_embeddings_takes_those_of_its_target(target: Path, tmp_path: Path) -> None:
    embeddings = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    own = kit.Made(MADE.shape, MADE.head, MADE.tensors | {"embed_tokens.weight": embeddings})
    without = {name: one for name, one in own.tensors.items() if name != "embed_tokens.weight"}
    bare = kit.Made(MADE.shape, MADE.head, without)
    folders = [kit.save_specforge(one, tmp_path / str(i)) for i, one in enumerate((own, bare))]
    assert torch.equal(*(said(load(folder, target)) for folder in folders))


def test_columns_in_any_order_are_sorted(target: Path, tmp_path: Path) -> None:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    ids = (MADE.tensors["d2t"] + torch.arange(40))[order]
    mixed = {"d2t": ids - torch.arange(40), "lm_head.weight": MADE.tensors["lm_head.weight"][order]}
    folder = kit.save_speculators(
        kit.Made(MADE.shape, MADE.head, MADE.tensors | mixed), tmp_path / "mixed"
    )
    plain = kit.save_speculators(MADE, tmp_path / "plain")
    assert torch.equal(*(said(load(one, target)) for one in (folder, plain)))


def test_an_output_that_a_head_lacks_is_the_targets(target: Path, tmp_path: Path) -> None:
    columns = load_file(target / "model.safetensors")["lm_head.weight"]
    full = make(shape={"hidden_size": 64}, draft_vocab_size=320)
    own = kit.Made(full.shape, full.head, full.tensors | {"lm_head.weight": columns})
    bare = {name: one for name, one in own.tensors.items() if name != "lm_head.weight"}
    folders = [
        kit.save_specforge(kit.Made(full.shape, full.head, tensors), tmp_path / str(number))
        for number, tensors in enumerate((own.tensors, bare))
    ]
    assert torch.equal(*(said(load(folder, target)) for folder in folders))


def test_layers_are_those_stored_where_the_number_is_the_targets(
    target: Path, tmp_path: Path
) -> None:
    whole = load(kit.save_specforge(MADE, tmp_path / "one"), target)
    copied = load(kit.save_specforge(MADE, tmp_path / "four", num_hidden_layers=4), target)
    assert torch.equal(said(whole), said(copied))
    assert copied.budget.layers == 1


def test_biases_are_read_where_they_are_stored(target: Path, tmp_path: Path) -> None:
    made = make(shape={"hidden_size": 64, "attention_bias": True})
    rows = []
    for told in (True, None):
        folder = kit.save_specforge(made, tmp_path / str(told), attention_bias=told)
        rows.append(said(load(folder, target)))
    assert torch.equal(*rows)


@pytest.mark.parametrize("name", ["Eagle3DeepseekV2ForCausalLM", "DFlashDraftModel", "EagleModel"])
def test_heads_of_other_kinds_are_no_draft_models_and_refused_by_name(
    name: str, target: Path, tmp_path: Path
) -> None:
    folder = kit.save_specforge(MADE, tmp_path, architectures=[name])
    assert is_head(folder)
    with pytest.raises(StartError, match=f"heads of {name} are not supported"):
        load(folder, target)


def test_the_parallel_heads_of_specforge_need_their_mask(target: Path, tmp_path: Path) -> None:
    made = make(shape={"hidden_size": 64}, parallel=4, mask_token_id=7)
    told = {"architectures": ["PEagleDraftModel"], "parallel_drafting": True, "num_depths": 3}
    folder = kit.save_specforge(made, tmp_path / "head", **told)
    assert is_head(folder)
    assert load(folder, target).parallel == 3
    folder = kit.save_specforge(made, tmp_path / "none", **told, mask_token_id=None)
    with pytest.raises(StartError, match="mask_token_id is missing"):
        load(folder, target)


def test_int8_weights_with_scales_are_read(target: Path, tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, torch.Tensor] = {}
    for name, one in MADE.tensors.items():
        tensors[name] = plain[name] = one
        if name.endswith("proj.weight"):
            scale = one.abs().amax(1, keepdim=True) / 127
            tensors[name] = (one / scale).round().to(torch.int8)
            tensors[f"{name}_scale"] = scale
            plain[name] = tensors[name].float() * scale
    said_so = {"quantization_config": {"quant_method": "compressed-tensors"}}
    folder = kit.save_speculators(
        kit.Made(MADE.shape, MADE.head, tensors), tmp_path / "int8", **said_so
    )
    expected = kit.save_speculators(kit.Made(MADE.shape, MADE.head, plain), tmp_path / "plain")
    torch.testing.assert_close(said(load(folder, target)), said(load(expected, target)))


def test_the_target_that_a_head_names_is_found(target: Path, tmp_path: Path) -> None:
    named = {"target": str(target), "target_weights": weights_digest(str(target))}
    folder = kit.save_specforge(MADE, tmp_path / "head", paceline=named)
    assert start.head(ModelSpec(str(folder), threads=1)).state_width == 192
    named["target_weights"] = "0" * 64
    folder = kit.save_specforge(MADE, tmp_path / "other", paceline=named)
    with pytest.raises(StartError, match="other weights"):
        load_head(ModelSpec(str(folder), threads=1))
    folder = kit.save_specforge(MADE, tmp_path / "nameless")
    with pytest.raises(StartError, match="names no model"):
        load_head(ModelSpec(str(folder), threads=1))


def test_the_usual_states_are_read_where_none_are_named(target: Path, tmp_path: Path) -> None:
    head = {name: value for name, value in MADE.head.items() if "layer_ids" not in name}
    deep = tiny_model_folder(tmp_path, "llama", num_hidden_layers=8)
    made = kit.Made(MADE.shape, head | {"eagle_aux_hidden_state_layer_ids": []}, MADE.tensors)
    assert load(kit.save_speculators(made, tmp_path / "head"), deep).layers == (2, 4, 5)


@pytest.mark.parametrize("save", LAYOUTS)
def test_a_head_with_a_mask_drafts_in_parallel(save: Save, target: Path, tmp_path: Path) -> None:
    made = make(shape={"hidden_size": 64}, parallel=4, ptd_token_id=7)
    engine = load(save(made, tmp_path / "head"), target)
    assert engine.parallel == (4 if save is kit.save_speculators else 5)
    assert list(engine.soft_ids) == list(range(320, 319 + engine.parallel))
    cache = engine.new_cache(60)
    cache.anchor(0, states(5, made))
    [rows] = engine.forward([Segment(cache, [*tokens(6), *engine.soft_ids])])
    assert rows[1:].norm(dim=-1).min() > 1
    del made.head["ptd_token_id"]
    plain = kit.Made(
        made.shape, {n: v for n, v in made.head.items() if n != "parallel"}, made.tensors
    )
    assert load(save(plain, tmp_path / "plain"), target).parallel == 0


def test_heads_are_told_from_models(target: Path, tmp_path: Path) -> None:
    for save in LAYOUTS:
        assert is_head(str(save(MADE, tmp_path / save.__name__)))
    assert not is_head(str(target))
    seeing = '{"architectures": ["Eagle2_5_VLForConditionalGeneration"]}'
    for content in (seeing, "", "[]", "{", "[" * 100_000, "{}", '{"architectures": "x"}'):
        (tmp_path / "config.json").write_text(content)
        assert not is_head(str(tmp_path))


# --- Folders that are wrong -----------------------------------------------------------------


_OF_LAYERS = ("rope", "mlp", "sliding", "use_sliding", "layer_types", "partial")


def _config(**changed: Any) -> Callable[[Path], None]:
    """Fields changed, wherever they stand; None takes one away."""

    def spoil(folder: Path) -> None:
        said = json.loads((folder / "config.json").read_text())
        layer = said["transformer_layer_config"]
        for name, value in changed.items():
            place = layer if name in layer or name.startswith(_OF_LAYERS) else said
            place[name] = value
        (folder / "config.json").write_text(json.dumps(said))

    return spoil


def _switch(**switches: Any) -> Callable[[Path], None]:
    return _config(eagle_config=switches)


def _both(*spoils: Callable[[Path], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        for one in spoils:
            one(folder)

    return spoil


def _tensors(**changed: Any) -> Callable[[Path], None]:
    """Tensors changed by a function, or taken away; `_` in names stands for a dot."""

    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        for name, change in changed.items():
            stored = name.replace("__", ".")
            before = tensors.pop(stored, torch.zeros(3))
            if change is not None:
                tensors[stored] = change(before).contiguous()
        save_file(tensors, folder / "model.safetensors")

    return spoil


def _nan(one: torch.Tensor) -> torch.Tensor:
    one[0] = torch.nan
    return one


def _truncated(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def _huge_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def _lying_header(folder: Path) -> None:
    said = {"fc.weight": {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 4]}}
    header = json.dumps(said).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def _twice(folder: Path) -> None:
    tensors = {"midlayer.hidden_norm.weight": torch.ones(64)}
    save_file(tensors, folder / "more.safetensors")


def _said(content: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "config.json").write_text(content)

    return spoil


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "kind": (_config(speculators_model_type="dflash"), "is not one of eagle3, peagle"),
    "width": (_config(hidden_size=1 << 40), "hidden_size"),
    "no width": (_config(hidden_size=None), "hidden_size is missing"),
    "a width that is a text": (_config(hidden_size="64"), "hidden_size"),
    "a width that is true": (_config(hidden_size=True), "hidden_size"),
    "heads": (_config(num_attention_heads=0), "num_attention_heads"),
    "K/V heads": (_config(num_key_value_heads=4), "do not share"),
    "layers": (_config(num_hidden_layers=1000), "num_hidden_layers"),
    "one layer more": (_config(num_hidden_layers=2), "is 2, but 1 of them"),
    "no layer": (_config(num_hidden_layers=0), "num_hidden_layers 0"),
    "vocabulary": (_config(vocab_size=321), "vocabulary of 321|embed_tokens"),
    "draft vocabulary": (_config(draft_vocab_size=400), "draft_vocab_size"),
    "another width": (_config(target_hidden_size=48), "width of 48"),
    "states beyond": (_config(eagle_aux_hidden_state_layer_ids=[1, 2, 5]), "0 to 4"),
    "states twice": (_config(eagle_aux_hidden_state_layer_ids=[1, 1, 2]), "twice"),
    "states of nothing": (_config(eagle_aux_hidden_state_layer_ids=[-1, 2, 3]), "layers"),
    "states that are none": (_config(eagle_aux_hidden_state_layer_ids="abc"), "layers"),
    "fewer states": (_config(eagle_aux_hidden_state_layer_ids=[1, 2]), "fc.weight"),
    "count of states": (_config(num_aux_hidden_states=4), "num_aux_hidden_states"),
    "epsilon": (_config(rms_norm_eps=float("nan")), "rms_norm_eps"),
    "theta": (_config(rope_theta=-1), "rope_theta"),
    "rope": (_config(rope_scaling={"rope_type": "longrope"}), "longrope"),
    "rope's numbers": (_config(rope_scaling={"rope_type": "llama3", "factor": 8}), "missing"),
    "rope that is none": (_config(rope_scaling=[1]), "rope_scaling"),
    "no mask": (_config(speculators_model_type="peagle"), "mask_token_id is missing"),
    "no state of a mask": (_config(mask_token_id=3), "missing, first mask_hidden"),
    "a mask beyond": (_config(mask_token_id=320), "mask_token_id"),
    "activation": (_config(hidden_act="gelu"), "gelu"),
    "biases": (_config(mlp_bias=True), "mlp_bias"),
    "a flag": (_config(norm_before_residual="yes"), "norm_before_residual"),
    "layers of another kind": (_config(model_type="gemma2"), "layers of gemma2"),
    "Qwen's without its norms": (_config(model_type="qwen3"), "missing, first .*q_norm"),
    "last states": (_switch(use_aux_hidden_state=False), "use_aux_hidden_state false"),
    "bare embeddings": (_switch(use_input_layernorm_in_first_layer=False), "first_layer false"),
    "no last norm": (_switch(use_last_layernorm=False), "use_last_layernorm false"),
    "a third norm": (_switch(use_mtp_layernorm=True), "use_mtp_layernorm true"),
    "other layers": (_switch(next_layer_regular=False), "next_layer_regular false"),
    "steps at once": (_switch(parallel_draft_step=4), "parallel_draft_step above 1"),
    "a switch that is none": (_switch(use_last_layernorm=1), "neither true nor false"),
    "a new switch": (_switch(use_seventh_sense=True), "use_seventh_sense is not known"),
    "states told twice": (
        _switch(eagle_aux_hidden_state_layer_ids=[0, 2, 4]),
        r"\[1, 2, 4\], and \[0, 2, 4\] in eagle_config",
    ),
    "a window that nobody sees": (
        _config(use_sliding_window=True, sliding_window=9),
        "no layer_types say",
    ),
    "no window": (_config(layer_types=["sliding_attention"]), "sliding_window is missing"),
    "a window that is off": (
        _config(layer_types=["sliding_attention"], use_sliding_window=False, sliding_window=9),
        "use_sliding_window is false",
    ),
    "attention of another kind": (_config(layer_types=["linear_attention"]), "linear_attention"),
    "no kinds of layers": (_config(layer_types=[]), "layer_types"),
    "rope of other layers": (
        _config(rope_parameters={"sliding_attention": {"rope_theta": 1e6}}),
        "is told of sliding_attention, and not of full_attention",
    ),
    "yarn's numbers": (_config(rope_scaling={"type": "yarn", "factor": 4, "beta_fast": 1}), "yarn"),
    "dynamic rope": (_config(rope_scaling={"type": "dynamic", "factor": 4}), "dynamic"),
    "part of a rotation": (_config(partial_rotary_factor=0.5), "partial_rotary"),
    "tied": (_both(_config(tie_word_embeddings=True), _tensors(lm_head__weight=None)), "tied"),
    "no output": (_tensors(lm_head__weight=None), "missing, first lm_head.weight"),
    "quantized": (_config(quantization_config={"quant_method": "awq"}), "awq"),
    "a tensor less": (_tensors(norm__weight=None), "missing, first norm.weight"),
    "no ids": (_tensors(d2t=None), "d2t is missing"),
    "a tensor more": (_tensors(extra=lambda one: one), "none of a head's"),
    "a shape": (_tensors(fc__weight=lambda one: one.T), "fc.weight is"),
    "a dtype": (_tensors(fc__weight=lambda one: one.to(torch.int16)), "I16"),
    "int8 without scale": (_tensors(fc__weight=lambda one: one.to(torch.int8)), "without a scale"),
    "float64": (_tensors(norm__weight=lambda one: one.double()), "F64"),
    "no number": (_tensors(lm_head__weight=_nan), "not finite"),
    "ids beyond": (_tensors(d2t=lambda one: one + 300), "each once"),
    "ids below": (_tensors(d2t=lambda one: one - 300), "each once"),
    "other ids": (_tensors(d2t=lambda one: one + 1), "those that t2d marks"),
    "ids twice": (_tensors(d2t=lambda one: -torch.arange(40)), "each once"),
    "truncated": (_truncated, "model.safetensors"),
    "a huge header": (_huge_header, "model.safetensors"),
    "a lying header": (_lying_header, "model.safetensors"),
    "pickled": (_pickled, "pickled"),
    "twice": (_twice, "twice"),
    "no tensors": (lambda folder: (folder / "model.safetensors").unlink(), "no \\*.safetensors"),
    "no JSON": (_said("{"), "no JSON"),
    "deep": (_said("[" * 99_999), "no JSON"),
    "long": (_said(" " * (2 << 20)), "no configuration"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_head_is_said_in_one_line(
    what: str, target: Path, tmp_path: Path
) -> None:
    spoil, why = WRONG[what]
    folder = kit.save_speculators(MADE, tmp_path / "head")
    spoil(folder)
    with pytest.raises(StartError, match=why) as caught:
        load(folder, target)
    assert str(folder) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_embeddings_of_another_width_need_a_table_of_their_own(
    target: Path, tmp_path: Path
) -> None:
    made = make(shape={"hidden_size": 48}, target_hidden_size=64)
    assert load(kit.save_specforge(made, tmp_path / "own"), target).state_width == 192
    del made.tensors["embed_tokens.weight"]
    with pytest.raises(StartError, match="embeddings are \\[320, 64\\]"):
        load(kit.save_specforge(made, tmp_path / "none"), target)
