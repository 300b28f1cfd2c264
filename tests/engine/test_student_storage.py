"""A drafter's folder: what is written is what is read, and what is broken is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.contract.errors import StartError
from services.engine.checkpoint.files import SHIPPED_DRAFTS, locate, weights_digest
from services.engine.native import NativeEngine
from services.engine.native.loading import load_model
from services.engine.native.student import cut, is_draft, load_student, save_student
from services.engine.native.student import storage as storage_module
from services.engine.native.student.quantize import dequantize, quantize, stored_shapes
from services.engine.native.student.shape import share_embeddings, shared_names
from services.engine.spec import ModelSpec
from tests.models import tiny_model, tiny_model_folder

HEAD = torch.arange(3, 320, 2)


# --- Quantizing -----------------------------------------------------------------------


@pytest.fixture(params=[(7, 32), (5, 33), (3, 70), (4, 5), (2, 3, 64)], ids=str)
def weights(request: pytest.FixtureRequest) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(request.param))
    return torch.randn(request.param, generator=generator) * 0.02


@pytest.mark.parametrize(("bits", "bound"), [(8, 0.01), (4, 0.1)])
def test_a_matrix_comes_back_within_the_error_of_its_bits(weights, bits, bound) -> None:
    codes, scales = quantize(weights, bits)
    assert (codes.shape, scales.shape) == stored_shapes(weights.shape, bits)
    assert scales.dtype is torch.float16
    back = dequantize(codes, scales, weights.shape[-1])
    assert back.shape == weights.shape
    assert float((back - weights).norm() / weights.norm()) < bound


def test_eight_bits_miss_no_value_by_more_than_half_a_step(weights: torch.Tensor) -> None:
    codes, scales = quantize(weights, 8)
    width = weights.shape[-1]
    step = scales.float().repeat_interleave(32, -1)[..., :width]
    assert bool(((dequantize(codes, scales, width) - weights).abs() <= 0.57 * step).all())


@pytest.mark.parametrize("bits", [8, 4])
def test_quantizing_again_changes_nothing(weights: torch.Tensor, bits: Any) -> None:
    width = weights.shape[-1]
    once = dequantize(*quantize(weights, bits), width)
    assert torch.equal(dequantize(*quantize(once, bits), width), once)


def test_the_scale_that_is_searched_for_beats_the_largest_value_over_seven(weights) -> None:
    rows = weights.flatten(0, -2)[:, :32]
    scale = (rows.abs().amax(-1, keepdim=True) / 7).half().float()
    plain = ((rows / scale).round().clamp(-8, 7) * scale - rows).square().sum(-1)
    searched = (dequantize(*quantize(rows, 4), rows.shape[-1]) - rows).square().sum(-1)
    assert bool((searched <= plain).all())
    assert float(searched.sum()) < 0.95 * float(plain.sum())


def test_zeros_and_one_odd_value_out_survive_four_bits() -> None:
    rows = torch.zeros(2, 40)
    rows[1, 39] = -0.75
    assert torch.equal(dequantize(*quantize(rows, 4), 40), rows)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e9])
def test_values_that_no_scale_can_hold_are_refused(bits: Any, bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        quantize(torch.tensor([[1.0, bad]]), bits)


# --- The folder -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("base"), "llama")


def distilled(folder: Path, base: Path, storage: Any = "bfloat16") -> Path:
    student = cut(load_model(ModelSpec(str(base))).model, [1], HEAD)
    weights = weights_digest(str(base))
    save_student(
        student, folder, base=str(base), base_weights=weights, storage=storage, card={"alpha": 0.5}
    )
    return folder


@pytest.fixture
def draft(base: Path, tmp_path: Path) -> Path:
    return distilled(tmp_path / "draft", base)


def spec(model: Path, **rest: Any) -> ModelSpec:
    return ModelSpec(str(model), cache_dir=model.parent / "cache", **rest)


def refusal(draft: Path, **rest: Any) -> str:
    with pytest.raises(StartError) as refused:
        load_model(spec(draft, **rest))
    line = str(refused.value)
    assert "\n" not in line
    assert line.startswith(f"draft {draft}: ")
    return line


def test_the_folder_holds_two_files_and_nothing_of_the_base(draft: Path) -> None:
    assert {file.name for file in draft.iterdir()} == {"draft.json", "draft.safetensors"}
    tensors = load_file(draft / "draft.safetensors")
    assert tensors["head_ids"].dtype is torch.int32
    assert not [name for name in tensors if "embed" in name]
    said = json.loads((draft / "draft.json").read_text())
    assert (said["layers"], said["storage"], said["card"]) == ([1], "bfloat16", {"alpha": 0.5})
    assert "group" not in said


def test_fewer_bits_make_smaller_files(base: Path, tmp_path: Path) -> None:
    sizes = [
        (distilled(tmp_path / bits, base, bits) / "draft.safetensors").stat().st_size
        for bits in ("bfloat16", "int8", "int4")
    ]
    assert sizes[0] > 1.7 * sizes[1] > 2.5 * sizes[2]


def test_saving_again_replaces_the_drafter_and_spares_other_files(draft: Path, base: Path) -> None:
    (draft / "curve.svg").write_text("plot")
    before = load_model(spec(draft)).fingerprint
    distilled(draft, base, "int4")
    assert json.loads((draft / "draft.json").read_text())["group"] == 32
    assert {f.name for f in draft.iterdir()} == {"draft.json", "draft.safetensors", "curve.svg"}
    assert load_model(spec(draft)).fingerprint != before


def test_a_save_that_fails_leaves_what_was_there(draft, base, monkeypatch) -> None:
    before = {file.name: file.read_bytes() for file in draft.iterdir()}
    student = cut(tiny_model("llama"), [0], HEAD)
    next(iter(student.own().values())).data.fill_(torch.nan)
    card: dict[str, Any] = {}
    with pytest.raises(ValueError, match="not finite"):
        save_student(student, draft, base="b", base_weights="w", storage="int4", card=card)
    monkeypatch.setattr(storage_module.os, "replace", lambda *_: (_ for _ in ()).throw(OSError()))
    with pytest.raises(OSError):  # noqa: PT011
        save_student(student, draft.parent / "new", base="b", base_weights="w",
                     storage="bfloat16", card=card)  # fmt: skip
    assert {file.name: file.read_bytes() for file in draft.iterdir()} == before
    assert not list((draft.parent / "new").iterdir())


# --- The base ---------------------------------------------------------------------------


def test_the_digest_of_weights_knows_neither_dtype_nor_path_nor_config(base, tmp_path) -> None:
    digest = weights_digest(str(base), tmp_path)
    moved = shutil.copytree(base, tmp_path / "moved")
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    assert weights_digest(str(moved), tmp_path) == digest
    assert weights_digest(str(tiny_model_folder(tmp_path, "llama", seed=1)), tmp_path) != digest
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert weights_digest(str(file), tmp_path) not in (digest, "")


def test_another_base_is_refused_and_the_moved_one_is_taken(draft: Path, base: Path) -> None:
    other = tiny_model_folder(draft.parent, "llama", seed=1)
    line = refusal(draft, base=str(other))
    assert f"was distilled from {base} (weights " in line
    assert f"but {other} has other weights" in line
    moved = shutil.copytree(base, draft.parent / "moved")
    assert load_model(spec(draft, base=str(moved))).head_ids is not None


def test_a_base_that_is_gone_is_named(draft: Path) -> None:
    assert "its base: model /gone: no such file or folder" in refusal(draft, base="/gone")


def test_a_whole_model_has_no_base(base: Path) -> None:
    with pytest.raises(StartError, match="so it has no base x"):
        load_model(ModelSpec(str(base), base="x"))


def test_only_the_embeddings_of_the_base_are_read(draft, base, monkeypatch) -> None:
    import safetensors

    asked: list[str] = []
    real = safetensors.safe_open

    class Watched:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._open = real(*args, **kwargs)

        def __enter__(self) -> Any:
            self._tensors = self._open.__enter__()
            return self

        def __exit__(self, *error: Any) -> Any:
            return self._open.__exit__(*error)

        def keys(self) -> Any:
            return self._tensors.keys()

        def get_tensor(self, name: str) -> Any:
            asked.append(name)
            return self._tensors.get_tensor(name)

    monkeypatch.setattr(safetensors, "safe_open", Watched)
    load_model(spec(draft))
    assert asked == ["model.embed_tokens.weight"]


def test_names_without_the_models_body_are_found(tmp_path: Path) -> None:
    base = tiny_model_folder(tmp_path, "gpt2")
    file = base / "model.safetensors"
    bare = {name.removeprefix("transformer."): t for name, t in load_file(file).items()}
    save_file(bare, file, {"format": "pt"})
    draft = distilled(tmp_path / "draft", base)
    student, target = load_model(spec(draft)).model, load_model(ModelSpec(str(base))).model
    for name in shared_names(target):
        assert torch.equal(student.get_parameter(name), target.get_parameter(name))


def test_the_fingerprint_tells_files_and_dtypes_apart(draft: Path, base: Path) -> None:
    prints = {load_model(spec(draft)).fingerprint, load_model(ModelSpec(str(base))).fingerprint}
    prints.add(load_model(spec(draft, dtype="bfloat16")).fingerprint)
    said = json.loads((draft / "draft.json").read_text())
    (draft / "draft.json").write_text(json.dumps({**said, "card": {"alpha": 0.6}}))
    prints.add(load_model(spec(draft)).fingerprint)
    assert len(prints) == 4


def test_tokenizer_and_generation_settings_are_the_bases(draft: Path, base: Path) -> None:
    assert load_model(spec(draft)).bundle == load_model(ModelSpec(str(base))).bundle


# --- What is broken -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": "other"}, "format 'other' is not 'paceline-draft'"),
        ({"version": 2}, "version 2; this Paceline reads 1"),
        ({"storage": "int3"}, "storage 'int3' is not one of bfloat16, int8, int4"),
        ({"layers": []}, "layers"),
        ({"layers": ["one"]}, "layers"),
        ({"layers": [7]}, "layers [7]: the target has layers 0..1"),
        ({"layers": 1}, "not a drafter's"),
        ({"base": {"model": "m"}}, "weights is missing"),
        ({"base": {"model": "m", "weights": 3}}, "base lacks"),
        ({"storage": "int8"}, "weight.codes is missing"),
    ],
)
def test_a_draft_json_that_makes_no_sense_is_one_clear_line(draft, change, named) -> None:
    said = json.loads((draft / "draft.json").read_text())
    (draft / "draft.json").write_text(json.dumps({**said, **change}))
    assert named in refusal(draft)


@pytest.mark.parametrize("text", ["", "[]", "{", "3", '"x"', "\xff"])
def test_a_draft_json_that_is_none_is_one_clear_line(draft: Path, text: str) -> None:
    (draft / "draft.json").write_text(text, encoding="latin-1")
    assert "draft.json: " in refusal(draft)


@pytest.mark.parametrize("name", ["draft.json", "draft.safetensors"])
def test_a_missing_file_is_named(draft: Path, name: str) -> None:
    (draft / name).unlink()
    assert is_draft(draft)
    assert name in refusal(draft)


@pytest.mark.parametrize("keep", [0, 4, 1000])
def test_a_cut_tensor_file_is_one_clear_line(draft: Path, keep: int) -> None:
    file = draft / "draft.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "draft.safetensors: " in refusal(draft)


def damaged(draft: Path, name: str, value: torch.Tensor | None) -> None:
    tensors = load_file(draft / "draft.safetensors")
    del tensors[name]
    if value is not None:
        tensors[name] = value
    save_file(tensors, draft / "draft.safetensors")


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([9, 3, 5], "ascending"),
        ([3, 3, 5], "ascending"),
        ([4], "ascending"),
        ([-1, 3], "head_ids -1..3: the base has 320"),
        ([3, 320], "head_ids 3..320: the base has 320"),
        (None, "tensor head_ids is missing"),
    ],
)
def test_a_head_that_makes_no_sense_is_refused(draft, ids, named) -> None:
    damaged(draft, "head_ids", None if ids is None else torch.tensor(ids, dtype=torch.int32))
    assert named in refusal(draft)


@pytest.mark.parametrize("value", [None, torch.zeros(3), torch.zeros(64, 3)])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight"])
def test_a_tensor_that_is_missing_or_of_wrong_shape_is_named(draft, name, value) -> None:
    damaged(draft, name, value)
    assert f"tensor {name} is " in refusal(draft)


@pytest.mark.parametrize("part", ["codes", "scales"])
@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_codes_and_scales_of_wrong_shape_are_named(base, tmp_path, bits, part) -> None:
    draft = distilled(tmp_path / "draft", base, bits)
    damaged(draft, f"lm_head.weight.{part}", torch.zeros(2, 2, dtype=torch.int8))
    assert f"tensor lm_head.weight.{part} is [2, 2]" in refusal(draft)


def test_codes_of_other_bits_are_refused(base: Path, tmp_path: Path) -> None:
    draft = distilled(tmp_path / "draft", base, "int8")
    codes = load_file(draft / "draft.safetensors")["lm_head.weight.codes"]
    damaged(draft, "lm_head.weight.codes", codes.view(torch.uint8))
    assert "not codes of 8 bits" in refusal(draft)


def test_a_base_without_the_embedding_is_refused(draft: Path, base: Path) -> None:
    config = load_model(ModelSpec(str(base))).model.config
    with pytest.raises(StartError, match=r"embed_tokens\.weight is missing"):
        load_student(draft, config, {}, torch.float32)
    wrong = {"model.embed_tokens.weight": torch.zeros(3, 64)}
    with pytest.raises(StartError, match=r"embed_tokens\.weight is \[3, 64\]"):
        load_student(draft, config, wrong, torch.float32)


def test_a_shipped_draft_is_found_by_its_name_or_said_to_be_missing(monkeypatch) -> None:
    monkeypatch.setitem(SHIPPED_DRAFTS, "x-draft", ("tests", "engine"))
    assert locate("X-draft") == Path(__file__).parent
    monkeypatch.setitem(SHIPPED_DRAFTS, "x-draft", ("services.drafter", "drafts/nothing"))
    with pytest.raises(StartError, match="draft x-draft: its folder drafts/nothing is not inst"):
        locate("x-draft")


def test_embeddings_loaded_in_the_same_dtype_share_memory(draft: Path, base: Path) -> None:
    target = load_model(ModelSpec(str(base))).model
    student = load_student(draft, target.config, dict(target.named_parameters()), torch.float32)
    name = "model.embed_tokens.weight"
    assert student.model.get_parameter(name).data_ptr() == target.get_parameter(name).data_ptr()
    share_embeddings(student, {name: target.get_parameter(name) + 1})
    assert student.model.get_parameter(name).data_ptr() != target.get_parameter(name).data_ptr()


def test_an_engine_on_a_folder_gives_a_column_per_token_of_the_head(draft: Path) -> None:
    engine = NativeEngine.load(spec(draft, threads=1))
    assert engine.head_ids is not None
    assert torch.equal(engine.head_ids, HEAD)
    assert (engine.vocab_size, engine.max_context_length) == (320, 512)
