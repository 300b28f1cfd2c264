"""What a GGUF file's settings count, held against its tensors before anything is made of them.

transformers makes as many layers as a file says that it has, and finds out afterwards.
"""

from __future__ import annotations

import re

from services.engine.checkpoint.gguf_file import Field, GgufFile

_NEEDED = ("block_count", "embedding_length", "context_length")
_NEEDED_TO_ATTEND = ("attention.head_count", "feed_forward_length")
"""Without these transformers makes a model of sizes of its own, which may be thousands as wide."""
_INTEGERS = frozenset((0, 1, 2, 3, 4, 5, 10, 11))
"""Kinds of settings that are whole numbers."""
_BLOCKS, _CONTEXT = "block_count", "context_length"
_SIDES = (
    *("embedding_length", "attention.head_count", "attention.head_count_kv"),
    *("attention.key_length", "attention.value_length", "rope.dimension_count"),
)
_MAYBE_NONE = (
    *("feed_forward_length", "expert_feed_forward_length", "vocab_size"),
    *("expert_count", "expert_used_count"),
)
_STATE_SPACE = ".ssm."
"""In names of what has no attention."""
EMBEDDINGS = "token_embd.weight"
_TOKENS = "tokenizer.ggml.tokens"
_SPECIAL = tuple(
    f"tokenizer.ggml.{one}_token_id" for one in ("bos", "eos", "eot", "eom", "unknown", "padding")
)
_BLOCK = re.compile(r"(?:^|\.)blk\.(\d+)\.")


def check_counts(file: GgufFile) -> None:
    """Raise ValueError, which names the setting, for a count that the tensors do not have.

    There are as many blocks as tensors are of, and nothing is longer than the longest side of one.
    """
    blocks = {found[1] for one in file.tensors if (found := _BLOCK.search(one.name))}
    longest = max((side for one in file.tensors for side in one.size), default=0)
    fewest = 0 if any(_STATE_SPACE in name for name in file.fields) else 1
    if all(one.name != EMBEDDINGS for one in file.tensors):
        raise ValueError(f"tensor {EMBEDDINGS} is missing")
    needed = (*_NEEDED, *(_NEEDED_TO_ATTEND if fewest else ()))
    settings = (f"{file.architecture}.{one}" for one in needed)
    if absent := [one for one in (*settings, _TOKENS) if one not in file.fields]:
        raise ValueError(f"{absent[0]} is missing")
    for name, field in file.fields.items():
        key = name.partition(".")[2]
        if key == _BLOCKS and (count := _numbers(name, field)) != [len(blocks)]:
            raise ValueError(f"{name} is {_told(count)}; its tensors are of {len(blocks)} blocks")
        if key == _CONTEXT and min(_numbers(name, field), default=0) < 1:
            raise ValueError(f"{name} is less than 1")
        if key in _SIDES:
            _check_sides(name, field, fewest, longest)
        if key in _MAYBE_NONE:
            _check_sides(name, field, 0, longest)
    _check_special(file)


def _check_sides(name: str, field: Field, fewest: int, longest: int) -> None:
    """Of several, one for each block, some may be none."""
    sides = _numbers(name, field)
    fewest = fewest if len(sides) == 1 else 0
    if wrong := [side for side in sides if not fewest <= side <= longest]:
        allowed = f"the longest side of a tensor is {longest}"
        raise ValueError(f"{name} is {wrong[0]}; the least is {fewest}, and {allowed}")


def _check_special(file: GgufFile) -> None:
    tokens = file.fields[_TOKENS]
    for name in _SPECIAL:
        if name in file.fields and (ids := _numbers(name, file.fields[name])) >= [len(tokens.data)]:
            raise ValueError(f"{name} is {_told(ids)}; there are {len(tokens.data)} tokens")


def _numbers(name: str, field: Field) -> list[int]:
    if field.types[-1] not in _INTEGERS:
        raise ValueError(f"{name} is no whole number")
    return [int(field.parts[index][0]) for index in field.data]


def _told(counts: list[int]) -> str:
    return ", ".join(map(str, counts[:3])) or "nothing"
