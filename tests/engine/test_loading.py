"""From names and files to engines, and the errors on the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from services.contract.errors import StartError
from services.engine.checkpoint import gguf as gguf_cache
from services.engine.checkpoint.files import ALIASES, cache_folder, locate, weights_digest
from services.engine.checkpoint.saved_tensors import SavedTensors
from services.engine.native import NativeEngine
from services.engine.native.loading import load_model
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.engine.conftest import CLOSE, stock_logits
from tests.models import (
    EOS,
    EOS_ID,
    SUPPORTED,
    tiny_model,
    tiny_model_folder,
    tiny_tokenizer,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny_model_folder(tmp_path_factory.mktemp("models"), "llama")


@pytest.fixture
def spec(tmp_path):
    return lambda model, **rest: ModelSpec(str(model), cache_dir=tmp_path / "cache", **rest)


@pytest.fixture
def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def test_a_saved_folder_gives_the_saved_model(saved, spec):
    engine = NativeEngine.load(spec(saved, threads=1))
    cache = engine.new_cache(8)
    [rows] = engine.forward([Segment(cache, [5, 6, 7])])
    torch.testing.assert_close(rows, stock_logits("llama", [5, 6, 7]), **CLOSE)
    assert engine.model_id == str(saved)
    assert engine.vocab_size == 320
    assert engine.max_context_length == 512
    assert engine.kv_tokens_capacity > 1000


def test_the_bundle_tokenizes_as_the_tokenizer_does(saved, spec):
    bundle = NativeEngine.load(spec(saved)).bundle
    text = "Hello drafter, héllo 😀 <|im_end|>"
    expected = tiny_tokenizer()(text)["input_ids"]
    assert Tokenizer.from_str(bundle.tokenizer_json).encode(text).ids == expected
    assert bundle.eos_token == EOS
    assert bundle.eos_token_ids == (EOS_ID,)
    assert "im_start" in bundle.chat_template
    assert json.loads(bundle.generation_config_json)["eos_token_id"] == EOS_ID


def test_using_the_tokenizer_does_not_change_its_fingerprint(saved, spec):
    before = NativeEngine.load(spec(saved)).bundle.fingerprint
    tokenizer = tiny_tokenizer()
    tokenizer(["a", "b b"], padding=True, truncation=True, max_length=4)
    after = NativeEngine.from_model(tiny_model("llama"), tokenizer).bundle.fingerprint
    assert before == after


def test_the_fingerprint_changes_with_weights_config_and_dtype(saved, copied, spec):
    fingerprints = {load_model(spec(saved)).fingerprint}
    assert load_model(spec(copied)).fingerprint in fingerprints
    fingerprints.add(load_model(spec(saved, dtype="bfloat16")).fingerprint)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    fingerprints.add(load_model(spec(copied)).fingerprint)
    weights = copied / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    fingerprints.add(load_model(spec(copied)).fingerprint)
    assert len(fingerprints) == 4


def test_fingerprints_of_models_in_memory_tell_weights_apart():
    first = NativeEngine.from_model(tiny_model("llama")).fingerprint
    assert first == NativeEngine.from_model(tiny_model("llama")).fingerprint
    assert first != NativeEngine.from_model(tiny_model("llama", seed=1)).fingerprint


@pytest.mark.parametrize("name", ["/no/such/folder", "./none.gguf", "~/no/such/model", "a/b/c"])
def test_a_missing_file_is_named(name):
    with pytest.raises(StartError, match="no such file or folder"):
        locate(name)


def test_an_unknown_hub_id_is_one_clear_line(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(StartError, match="not a local file, and not on the hub") as refusal:
        locate("nobody/nothing")
    assert "\n" not in str(refusal.value)


def test_the_draft_model_that_came_along_once_is_told_what_to_use_in_its_place():
    with pytest.raises(StartError) as refused:
        locate("smollm2-135m-instruct-draft")
    assert str(refused.value) == (
        "model smollm2-135m-instruct-draft: comes with Paceline no longer; "
        "use smollm2-135m-instruct-eagle"
    )


def test_the_digest_of_weights_knows_neither_dtype_nor_path_nor_config(saved, copied, tmp_path):
    digest = weights_digest(str(saved), tmp_path)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    assert weights_digest(str(copied), tmp_path) == digest
    assert weights_digest(str(tiny_model_folder(tmp_path, "llama", seed=1)), tmp_path) != digest
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert weights_digest(str(file), tmp_path) not in (digest, "")


def test_a_whole_model_was_made_for_no_other(saved):
    with pytest.raises(StartError, match="no head, so it was made for no x"):
        load_model(ModelSpec(str(saved), base="x"))


@pytest.mark.parametrize("arch", [*SUPPORTED, "bloom", "mamba"])
def test_embeddings_and_output_are_found_whatever_a_family_calls_them(tmp_path, arch):
    model, base = tiny_model(arch), tiny_model_folder(tmp_path, arch)
    saved = SavedTensors(base)
    assert torch.equal(saved.embeddings(), model.get_input_embeddings().weight)
    assert torch.equal(saved.output(), model.get_output_embeddings().weight)


@pytest.mark.parametrize("name", ["gemma3", "mistral3", "llama4", "qwen2_5_vl"])
def test_those_of_texts_are_taken_where_a_model_sees_images_too(tmp_path, name):
    table = torch.randn(8, 4)
    others = {
        "vision_tower.embeddings.weight": torch.ones(2, 2),
        "visual.output.weight": torch.ones(2, 2),
        "model.layers.9.embed_tokens.weight": torch.ones(8, 4),
    }
    text = {
        "gemma3": {"language_model.model.embed_tokens.weight": table},
        "mistral3": {"model.language_model.embed_tokens.weight": table},
        "llama4": {"language_model.model.embed_tokens.weight": table},
        "qwen2_5_vl": {"model.embed_tokens.weight": table},
    }[name]
    save_file({**others, **text}, tmp_path / "model.safetensors")
    saved = SavedTensors(tmp_path)
    assert torch.equal(saved.embeddings(), table)
    assert torch.equal(saved.output(), table)
    head = {"language_model.lm_head.weight": table + 1}
    save_file({**others, **text, **head}, tmp_path / "model.safetensors")
    assert torch.equal(SavedTensors(tmp_path).output(), table + 1)


def test_files_that_are_broken_or_have_no_embeddings_say_so(tmp_path):
    base = tiny_model_folder(tmp_path, "gpt2")
    file = base / "model.safetensors"
    whole = load_file(file)
    table = whole.pop("transformer.wte.weight")
    save_file({**whole, "wte.weight": table}, file, {"format": "pt"})
    assert torch.equal(SavedTensors(base).embeddings(), table)
    save_file(whole, file, {"format": "pt"})
    with pytest.raises(ValueError, match="its target's files have 0 tensors of embeddings"):
        SavedTensors(base).embeddings()
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(StartError, match=str(file)):
        SavedTensors(base)


def test_an_alias_without_its_package_is_named(monkeypatch):
    monkeypatch.setitem(ALIASES, "absent", ("no_such_package", "*.gguf"))
    with pytest.raises(StartError, match="no-such-package is not installed"):
        locate("absent")


def cut_after(size):
    return lambda weights: weights.write_bytes(weights.read_bytes()[:size])


def without_a_tensor(weights):
    tensors = load_file(weights)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, weights, {"format": "pt"})


def of_no_architecture(weights):
    weights.with_name("config.json").write_text('{"model_type": "no_such_thing"}')


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda weights: weights.rename(weights.with_name("pytorch_model.bin")), "safetensors"),
        *((cut_after(size), "model") for size in (0, 100, 5000)),
        (of_no_architecture, "no_such_thing"),
        (without_a_tensor, "up_proj"),
    ],
)
def test_a_broken_folder_is_refused_in_one_clear_line(copied, spec, damage, told):
    damage(copied / "model.safetensors")
    with pytest.raises(StartError, match=told) as refusal:
        load_model(spec(copied))
    assert "\n" not in str(refusal.value)


def test_an_unknown_dtype_names_the_known_ones(saved, spec):
    with pytest.raises(StartError, match="float32, bfloat16, float16"):
        load_model(spec(saved, dtype="int3"))


def test_a_broken_gguf_file_is_one_clear_line_and_leaves_nothing(tmp_path, spec):
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(StartError, match=r"broken\.gguf"):
        load_model(spec(file))
    with pytest.raises(StartError, match=r"broken\.gguf"):
        gguf_cache.converted(file, "digest", "float32", tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


@pytest.fixture
def fake_conversion(monkeypatch):
    runs = []

    def convert(file, dtype, target):
        runs.append(dtype)
        (target / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(gguf_cache, "_convert", convert)
    return runs


def test_a_conversion_is_made_once_per_dtype(tmp_path, fake_conversion):
    for dtype in ("float32", "bfloat16", "float32", "int8"):
        folder = gguf_cache.converted(tmp_path / "m.gguf", "digest", dtype, tmp_path)
        assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert fake_conversion == [torch.float32, torch.bfloat16]


def test_a_broken_conversion_is_made_again(tmp_path, fake_conversion):
    folder = gguf_cache.converted(tmp_path / "m.gguf", "digest", "float32", tmp_path)
    (folder / "model.safetensors").write_bytes(b"half")
    assert not gguf_cache.is_whole(folder)
    again = gguf_cache.converted(tmp_path / "m.gguf", "digest", "float32", tmp_path)
    assert (again / "model.safetensors").read_bytes() == b"weights"
    assert len(fake_conversion) == 2


def test_a_cache_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    told = "cache folder .*: Not a directory; name another folder with PACELINE_CACHE_DIR"
    with pytest.raises(StartError, match=told):
        gguf_cache.converted(tmp_path / "m.gguf", "digest", "float32", tmp_path / "file")


@pytest.mark.parametrize(
    "full",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
@pytest.mark.parametrize("place", ["_convert", "_mark"])
def test_a_disk_that_fills_up_is_told_and_what_was_written_is_gone(
    tmp_path, fake_conversion, monkeypatch, full, place
):
    def fill(*arguments):
        folder = next(one for one in arguments if isinstance(one, Path) and one.suffix != ".gguf")
        (folder / "model.safetensors").write_bytes(b"half")
        raise full

    with monkeypatch.context() as small:
        small.setattr(gguf_cache, place, fill)
        with pytest.raises(StartError, match="the disk is full; make room, or name another"):
            gguf_cache.converted(tmp_path / "m.gguf", "digest", "float32", tmp_path)
    assert list((tmp_path / "models").iterdir()) == []
    folder = gguf_cache.converted(tmp_path / "m.gguf", "digest", "float32", tmp_path)
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_a_conversion_that_was_killed_is_not_believed(tmp_path, fake_conversion):
    half = tmp_path / "models" / "digest-float32"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    folder = gguf_cache.converted(tmp_path / "m.gguf", "digest", "float32", tmp_path)
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_what_killed_conversions_left_is_removed_a_day_later(tmp_path, fake_conversion):
    old, new = tmp_path / "models" / ".converting-old", tmp_path / "models" / ".converting-new"
    for scratch in (old, new):
        scratch.mkdir(parents=True)
        (scratch / "model.safetensors").write_bytes(b"half")
    long_ago = time.time() - 25 * 3600
    os.utime(old, (long_ago, long_ago))
    gguf_cache.converted(tmp_path / "m.gguf", "digest", "float32", tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_variable_names_the_cache_folder_where_no_flag_does(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "variable"))
    assert cache_folder(None) == tmp_path / "variable"
    assert cache_folder(tmp_path / "flag") == tmp_path / "flag"
    monkeypatch.delenv("PACELINE_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / ".cache" / "paceline"


def test_without_a_home_folder_one_is_to_be_named(monkeypatch):
    def nowhere(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PACELINE_CACHE_DIR", raising=False)
    monkeypatch.setattr(Path, "expanduser", nowhere)
    with pytest.raises(StartError, match="no home folder; name another folder with PACELINE_CACHE"):
        cache_folder(None)
