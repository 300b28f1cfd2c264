"""GGUF files that count what they do not have: a start ends at once, in a line that says so."""

import struct

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
