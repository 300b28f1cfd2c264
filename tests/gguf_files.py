"""GGUF files of random weights, as llama.cpp would write them.

gguf_file(tmp_path / "m.gguf", "gemma3")            a tiny one, in a tenth of a second
python -m tests.gguf_files m.gguf --real             as large as Gemma 3 270M, 293 MB
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

_BYTES = 256
_UINT32 = 4
_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")


@dataclass(frozen=True)
class Shape:
    """Of a model."""

    width: int = 64
    middle: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head: int = 32
    vocabulary: int = 384


REAL = Shape(640, 2048, 18, 4, 1, 256, 262_144)
"""Gemma 3 270M's."""
_GEMMA = ("attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm")


def gguf_file(
    file: Path,
    architecture: str = "llama",
    shape: Shape = Shape(),
    kind: str = "Q8_0",
    in_a_part: int = 0,
    without: Collection[str] = (),
    more: Mapping[str, Any] | None = None,
    said: Mapping[str, int | float | str] | None = None,
) -> Path:
    """A model of an architecture (`llama`, `gemma3`), its embeddings tied to its last layer.

    `kind`: how its matrices are kept. `in_a_part`: tensors of each part; 0: one whole file.
    `without`: settings and tensors that are left out. `more`: tensors that are added. `said`:
    settings that are.
    """
    import gguf

    writer = gguf.GGUFWriter(file, architecture, split_max_tensors=in_a_part)
    writer.add_context_length(512)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.middle)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    if architecture == "gemma3":
        writer.add_sliding_window(512)
    _add_tokenizer(writer, shape.vocabulary)
    _add_tensors(writer, architecture, shape, gguf.GGMLQuantizationType[kind])
    for name, tensor in (more or {}).items():
        writer.add_tensor(name, tensor)
    for name, value in (said or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](name, value)
    for kept in (*writer.kv_data, *writer.tensors):
        for name in without:
            kept.pop(name, None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(file.parent.glob(f"{file.stem}-*")) if in_a_part else file


def lying(file: Path, setting: str, value: int) -> Path:
    """The same file with another number in a setting of 32 bits."""
    named = setting.encode() + struct.pack("<I", _UINT32)
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, data.index(named) + len(named), value)
    file.write_bytes(data)
    return file


def _add_tokenizer(writer: Any, count: int) -> None:
    """SentencePiece's, with pieces that are made of earlier ones."""
    drawn = random.Random(0)
    pieces = ["▁", *map(chr, chain(range(33, 127), range(0xC0, 0x250), range(0x4E00, 0x59B8)))]
    lacking = count - len(_SPECIAL) - _BYTES
    pieces = pieces[:lacking]
    seen = set(pieces)
    while len(pieces) < lacking:
        made = "".join(pieces[int(len(pieces) * drawn.random() ** 3)] for _ in range(2))
        if len(made) <= 14 and made not in seen and "▁" not in made[1:]:
            seen.add(made)
            pieces.append(made)
    letters = [f"<0x{byte:02X}>" for byte in range(_BYTES)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*_SPECIAL, *letters, *pieces])
    writer.add_token_scores([0.0] * (count - lacking) + [-float(i) for i in range(lacking)])
    writer.add_token_types([3, 3, 3, 2, *[6] * _BYTES, *[1] * lacking])
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)


def _add_tensors(writer: Any, architecture: str, shape: Shape, kind: Any) -> None:
    import gguf

    drawn = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        made = drawn.standard_normal((rows, columns), dtype=np.float32) * gain / columns**0.5
        writer.add_tensor(f"{name}.weight", gguf.quantize(made, kind), raw_dtype=kind)

    def norm(name: str, size: int) -> None:
        made = 1.0 + 0.1 * drawn.standard_normal(size, dtype=np.float32)
        writer.add_tensor(f"{name}.weight", made)

    matrix("token_embd", shape.vocabulary, shape.width, 8.0)
    norm("output_norm", shape.width)
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm", *(_GEMMA if architecture == "gemma3" else ())):
            norm(at + name, shape.head if name.endswith(("q_norm", "k_norm")) else shape.width)
        matrix(at + "attn_q", queries, shape.width)
        matrix(at + "attn_k", keys, shape.width)
        matrix(at + "attn_v", keys, shape.width)
        matrix(at + "attn_output", shape.width, queries)
        matrix(at + "ffn_gate", shape.middle, shape.width)
        matrix(at + "ffn_up", shape.middle, shape.width)
        matrix(at + "ffn_down", shape.width, shape.middle)


if __name__ == "__main__":
    gguf_file(Path(sys.argv[1]), "gemma3", REAL if "--real" in sys.argv else Shape())
