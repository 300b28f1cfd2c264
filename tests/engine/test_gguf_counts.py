"""GGUF files that count what they do not have: a start ends at once, in a line that says so."""

import struct

import numpy as np
import pytest

from services.contract.errors import StartError
from services.engine.checkpoint.bundle import bundle_of, source_folder
from services.engine.checkpoint.gguf_file import GgufFile
from services.engine.native.loading import load_model
from services.engine.spec import ModelSpec
from tests.gguf_files import gguf_file, lying

pytest.importorskip("gguf")
GGUF_HEAD = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)


def refusal_of(start):
    """The one line that a start ends with."""
    with pytest.raises(StartError) as refused:
        start()
    said = str(refused.value)
    assert "\n" not in said
    return said


COUNTS = {
    "block_count": "2 blocks",
    "embedding_length": "longest side of a tensor is 384",
    "feed_forward_length": "longest side of a tensor is 384",
    "attention.head_count": "longest side of a tensor is 384",
    "attention.head_count_kv": "longest side of a tensor is 384",
    "attention.key_length": "longest side of a tensor is 384",
    "attention.value_length": "longest side of a tensor is 384",
    "rope.dimension_count": "longest side of a tensor is 384",
}
IDS = [f"tokenizer.ggml.{one}_token_id" for one in ("bos", "eos", "unknown", "padding")]
READERS = {
    "load": lambda spec: load_model(spec),
    "bundle": lambda spec: bundle_of(spec.model),
    "convert": lambda spec: source_folder(spec.model, "float32", spec.cache_dir),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("value", [10_000, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize("setting", ["block_count", "embedding_length", "attention.head_count"])
def test_no_reader_makes_what_a_gguf_file_counts_in_vain(tmp_path, setting, value, reader):
    file = lying(gguf_file(tmp_path / "m.gguf", "gemma3"), f"gemma3.{setting}", value)
    spec = ModelSpec(str(file), cache_dir=tmp_path / "cache")
    said = refusal_of(lambda: READERS[reader](spec))
    assert f"gemma3.{setting} is {value}; " in said
    assert COUNTS[setting] in said


@pytest.mark.parametrize("setting", COUNTS)
def test_a_gguf_file_that_counts_wrong_ends_in_one_line_that_names_the_setting(tmp_path, setting):
    file = lying(gguf_file(tmp_path / "m.gguf", "gemma3"), f"gemma3.{setting}", 2**32 - 1)
    said = refusal_of(lambda: load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache")))
    assert f"gemma3.{setting} is 4294967295; " in said
    assert COUNTS[setting] in said


@pytest.mark.parametrize("setting", ["attention.sliding_window", "context_length"])
def test_what_no_tensor_has_a_side_for_may_be_large(tmp_path, setting):
    file = lying(gguf_file(tmp_path / "m.gguf", "gemma3"), f"gemma3.{setting}", 2**31 - 1)
    assert load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache")).model


@pytest.mark.parametrize(
    ("setting", "value"),
    [("block_count", 0), ("block_count", 1), ("attention.head_count", 0), ("context_length", 0)],
)
def test_a_gguf_file_that_counts_too_few_is_no_smaller_model(tmp_path, setting, value):
    file = lying(gguf_file(tmp_path / "m.gguf"), f"llama.{setting}", value)
    said = refusal_of(lambda: load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache")))
    assert f"llama.{setting} is " in said


@pytest.mark.parametrize("setting", IDS)
def test_a_token_that_a_gguf_file_does_not_have_is_named(tmp_path, setting):
    file = lying(gguf_file(tmp_path / "m.gguf"), setting, 384)
    said = refusal_of(lambda: load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache")))
    assert f"{setting} is 384; there are 384 tokens" in said


def test_sizes_that_are_none_of_the_tensors_are_said(tmp_path):
    file = lying(gguf_file(tmp_path / "m.gguf"), "llama.feed_forward_length", 96)
    said = refusal_of(lambda: load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache")))
    assert said.endswith("tensors have other sizes than the settings say")


HEADS = {
    "tensors": (GGUF_HEAD[:8] + struct.pack("<QQ", 2**18, 1), "262144 tensors, more than"),
    "settings": (GGUF_HEAD[:8] + struct.pack("<QQ", 1, 2**40), "1099511627776 values"),
    "strings": (
        GGUF_HEAD + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 8, 2**40),
        "1099511627777 values of settings, more than 4194304",
    ),
    "bytes": (
        GGUF_HEAD + struct.pack("<Q", 1) + b"a" + struct.pack("<IQ", 8, 2**28),
        "more than 268435456 bytes",
    ),
}


@pytest.mark.parametrize("head", HEADS)
def test_what_a_large_gguf_file_holds_in_vain_is_not_read(tmp_path, head):
    file, (data, told) = tmp_path / "m.gguf", HEADS[head]
    with file.open("wb") as written:
        written.write(data)
        # Zeros that take no room on the disk: read as they are, empty strings and settings.
        written.truncate(2**30)
    with pytest.raises(ValueError, match=told):
        GgufFile(file)


def test_a_tensor_without_numbers_is_refused_however_many_rows_it_has(tmp_path):
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<IQQIQ", 2, 0, 2**40, 0, 0)
    file = tmp_path / "m.gguf"
    file.write_bytes(GGUF_HEAD[:8] + struct.pack("<QQ", 1, 0) + tensor + bytes(64))
    with pytest.raises(ValueError, match="tensor t has no numbers"):
        GgufFile(file)


TENSORS = [
    *("token_embd", "output_norm", "blk.1.attn_norm", "blk.0.attn_q", "blk.1.attn_output"),
    *("blk.0.ffn_gate", "blk.1.ffn_up", "blk.1.ffn_down"),
]


@pytest.mark.parametrize("reader", [name for name in READERS if name != "bundle"])
@pytest.mark.parametrize("name", TENSORS)
def test_no_reader_makes_up_a_tensor_that_a_gguf_file_lacks(tmp_path, name, reader):
    file = gguf_file(tmp_path / "m.gguf", without=[f"{name}.weight"])
    spec = ModelSpec(str(file), cache_dir=tmp_path / "cache")
    said = refusal_of(lambda: READERS[reader](spec))
    assert f"{name}.weight" in said
    assert "missing" in said
    assert not list(tmp_path.glob("cache/models/*"))


def test_a_tensor_that_a_model_has_no_place_for_is_named(tmp_path):
    more = {"blk.0.attn_q.bias": np.ones(128, np.float32)}
    file = gguf_file(tmp_path / "m.gguf", more=more)
    said = refusal_of(lambda: load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache")))
    assert said.endswith("a model of llama has no place for blk.0.attn_q.bias here")


NEEDED = [
    *("block_count", "embedding_length", "context_length", "feed_forward_length"),
    "attention.head_count",
]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", [f"llama.{one}" for one in NEEDED] + ["tokenizer.ggml.tokens"])
def test_no_reader_takes_sizes_of_its_own_where_a_gguf_file_says_none(tmp_path, name, reader):
    file = gguf_file(tmp_path / "m.gguf", without=[name])
    spec = ModelSpec(str(file), cache_dir=tmp_path / "cache")
    assert f"{name} is missing" in refusal_of(lambda: READERS[reader](spec))


@pytest.mark.parametrize("reader", ["load", "bundle"])
@pytest.mark.parametrize("head", HEADS)
def test_no_reader_reads_what_a_large_gguf_file_holds_in_vain(tmp_path, monkeypatch, head, reader):
    file, (data, told) = tmp_path / "m.gguf", HEADS[head]
    with file.open("wb") as written:
        written.write(data)
        written.truncate(2**30)
    # A gigabyte of zeros is not what this is about.
    monkeypatch.setattr("services.engine.native.loading.gguf_digest", lambda *_: "digest")
    spec = ModelSpec(str(file), cache_dir=tmp_path / "cache")
    assert told in refusal_of(lambda: READERS[reader](spec))


@pytest.mark.parametrize(
    ("architecture", "others"),
    [("plamo2", "llama.cpp does, or bring its safetensors"), ("mine", "bring its safetensors")],
)
def test_who_reads_a_file_that_transformers_does_not_is_said(tmp_path, architecture, others):
    file = gguf_file(tmp_path / "m.gguf", architecture)
    said = refusal_of(lambda: load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache")))
    assert said.endswith(f"transformers reads no GGUF files of {architecture}; {others}")


def test_weights_that_nobody_here_makes_floats_of_are_said_before_they_are_needed(
    tmp_path, monkeypatch
):
    import gguf

    def dequantize(blocks, kind):
        raise NotImplementedError(f"Dequantization for {kind.name} is not yet implemented")

    monkeypatch.setattr(gguf, "dequantize", dequantize)
    file = gguf_file(tmp_path / "m.gguf")
    spec = ModelSpec(str(file), cache_dir=tmp_path / "cache")
    said = refusal_of(lambda: load_model(spec, apart=True))
    assert said.endswith("weights of the kind Q8_0 are read by llama.cpp alone")


def test_a_kind_of_weights_that_is_not_known_is_named(tmp_path):
    file = gguf_file(tmp_path / "m.gguf")
    name = b"token_embd.weight" + struct.pack("<IQQ", 2, 64, 384)
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, data.index(name) + len(name), 999)
    file.write_bytes(data)
    said = refusal_of(lambda: load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache")))
    assert said.endswith("tensor token_embd.weight is of kind 999, which is not known here")


def test_a_folder_of_gguf_files_says_to_name_one(tmp_path):
    gguf_file(tmp_path / "m.gguf")
    said = refusal_of(lambda: load_model(ModelSpec(str(tmp_path), cache_dir=tmp_path / "cache")))
    assert said.endswith("a folder of GGUF files; name one of them, m.gguf")
