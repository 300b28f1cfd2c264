"""The n-gram file of a target: what it says after one token, and after one to four.

Made by `paceline train ngrams`, read by the drafter `ngram`. The standard library alone.

    8 bytes    magic
    u32, u32   version; bytes of the header
    header     JSON: target, its fingerprints, vocabulary, sizes of the parts, weights, card
    firsts     what the target says after its chat header and each token of the vocabulary:
               ids [V, 8] and codes [V, 8]
    laws       for n = 1 to 4, its mean law after n tokens: keys u32 [N], ascending,
               supports u8 [N], lengths u8 [N], ids [M], codes u8 [M]
    32 bytes   SHA-256 of all before

Numbers are little-endian; ids are u16 where the vocabulary fits, else u32. A code is a
probability on a logarithmic scale, see `code_of`; a support is how many places a law is
the mean of, see `support_of`. A key is a hash of the tokens, `extend_key`: of two contexts
with one key, one in 2**32, the drafter takes one for the other, which costs speed alone.

Whoever can write this file says what is drafted, not what is accepted.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from services.contract.errors import StartError
from services.engine.checkpoint.shipped import shipped
from services.runtime.atomic_file import replacing

MAGIC = b"PLNGRAM\0"
VERSION = 1
FIRSTS = 8
"""Tokens that are kept after each token of the vocabulary."""
ORDERS = 4
"""Longest context of a law, in tokens."""
LONGEST_LAW = 16
LARGEST_FILE = 1 << 28
LARGEST_HEADER = 1 << 16
LARGEST_VOCABULARY = 1 << 22
LARGEST_WEIGHT = 64.0
NO_FILE = "none"
"""Asked for in place of a file: none at all."""
_HEAD, _DIGEST = struct.Struct("<8sII"), 32
_CODES_PER_BIT = 20.0
_SUPPORTS_PER_BIT = 16.0
_MASK = 0xFFFFFFFF
DRAFTED = 8
"""Tokens that are kept of a draft model's law."""
_LEAST_LOG = -8.0
_LEAST_REST = 1e-3


def code_of(probability: float) -> int:
    """1..255: 255 is certain, each 20 less is half as likely; what is less than all is 1."""
    return max(1, min(255, round(255 + _CODES_PER_BIT * math.log2(max(probability, 1e-30)))))


def support_of(count: float) -> int:
    """0..255: a count of places, 0 for one, 16 more for twice as many."""
    return min(255, round(_SUPPORTS_PER_BIT * math.log2(max(1.0, count))))


def extend_key(key: int, token: int) -> int:
    """The key of a context with one token more in front; 0 is that of no token."""
    key = (key ^ token + 1) * 0x9E3779B1 & _MASK
    return key ^ key >> 15


@dataclass(frozen=True, slots=True)
class Laws:
    """Mean laws after n tokens: law i has `ids[starts[i] : starts[i + 1]]` and their codes."""

    keys: Sequence[int] = ()
    supports: bytes = b""
    starts: Sequence[int] = (0,)
    ids: Sequence[int] = ()
    codes: bytes = b""

    def find(self, key: int) -> int:
        """The law of a context by its key; -1 = there is none."""
        place = bisect_left(self.keys, key)
        return place if place < len(self.keys) and self.keys[place] == key else -1


@dataclass(frozen=True, slots=True)
class NgramFile:
    """What an n-gram file holds; `laws` are those after 1, 2, ... tokens.

    `target_fingerprint` identifies the weights that it was learned from, for people;
    a drafter is bound to the tokenizer and the size of the vocabulary.
    """

    target: str
    target_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    first_ids: Sequence[int]
    first_codes: bytes
    laws: tuple[Laws, ...]
    weights: Mapping[str, float] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)


class DraftLaw(NamedTuple):
    """What a draft model says at one place: its likeliest tokens, and the log of all the rest.

    `logs`: log-probabilities at temperature 1, falling.
    """

    ids: tuple[int, ...]
    logs: tuple[float, ...]
    rest: float


def draft_law(ids: Sequence[int], logs: Sequence[float]) -> DraftLaw:
    """What is kept of a law whose likeliest tokens are these; nothing where it is none."""
    known = [(token, log) for token, log in zip(ids, logs, strict=True) if log > _LEAST_LOG]
    rest = max(_LEAST_REST, 1.0 - sum([math.exp(log) for _, log in known]))
    return DraftLaw(tuple([t for t, _ in known]), tuple([log for _, log in known]), math.log(rest))


@dataclass(frozen=True, slots=True)
class Lesson:
    """A text, where its answer begins, and from there on the law of every next token.

    `law_ids`, `law_logs`: per place the likeliest tokens, best first, and their
    log-probabilities at temperature 1. `greedy`: the text was written greedily.
    `draft`, `head`: what a draft model and a head say at each of these places; empty: there
    is none.
    """

    tokens: Sequence[int]
    start: int
    law_ids: Sequence[Sequence[int]]
    law_logs: Sequence[Sequence[float]]
    greedy: bool
    draft: Sequence[DraftLaw] = ()
    head: Sequence[DraftLaw] = ()


def ngrams_path(name: str) -> Path:
    """Where the file of a name is: one that comes with Paceline, or a path.

    Raises StartError for one that comes with Paceline and is not installed.
    """
    return shipped("ngrams", name) or Path(name).expanduser()


def save_ngrams(path: Path, file: NgramFile) -> None:
    """Write the file, whole or not at all."""
    header = json.dumps(
        {
            "target": file.target,
            "target_fingerprint": file.target_fingerprint,
            "tokenizer_fingerprint": file.tokenizer_fingerprint,
            "vocab_size": file.vocab_size,
            "laws": [[len(laws.keys), len(laws.ids)] for laws in file.laws],
            "weights": dict(file.weights),
            "card": dict(file.card),
        }
    ).encode()
    kind = _id_type(file.vocab_size)
    parts = [_HEAD.pack(MAGIC, VERSION, len(header)), header]
    parts += [_packed(kind, file.first_ids), file.first_codes]
    for laws in file.laws:
        lengths = bytes(end - start for start, end in pairwise(laws.starts))
        parts += [_packed("I", laws.keys), laws.supports, lengths]
        parts += [_packed(kind, laws.ids), laws.codes]
    data = b"".join(parts)
    with replacing(path) as scratch:
        scratch.write_bytes(data + hashlib.sha256(data).digest())


def load_ngrams(path: Path) -> NgramFile:
    """The file's content. Raises StartError, one line, for one that is broken or foreign."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise _bad(path, f"it is larger than {LARGEST_FILE >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise StartError(f"ngrams: {path}: {error.strerror}") from None
    return _Reader(path, data).read()


class _Reader:
    """Takes a file apart; nothing in it is believed before it is checked."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data = path, data
        self._at = 0

    def read(self) -> NgramFile:
        header = self._header()
        vocab_size, sizes = self._sizes(header)
        kind = _id_type(vocab_size)
        self._check_length(kind, vocab_size, sizes)
        first_ids = self._array(kind, vocab_size * FIRSTS, below=vocab_size)
        first_codes = self._bytes(vocab_size * FIRSTS)
        laws = tuple(self._laws(kind, vocab_size, *size) for size in sizes)
        return NgramFile(
            self._text(header, "target"),
            self._text(header, "target_fingerprint"),
            self._text(header, "tokenizer_fingerprint"),
            vocab_size,
            first_ids,
            first_codes,
            laws,
            self._weights(header),
            card if isinstance(card := header.get("card"), dict) else {},
        )

    def _header(self) -> dict[str, Any]:
        data = self._data
        if len(data) < _HEAD.size + _DIGEST or not data.startswith(MAGIC):
            raise _bad(self._path, "it is no n-gram file")
        _, version, length = _HEAD.unpack_from(data)
        if version != VERSION:
            raise _bad(self._path, f"it is of version {version}; this one reads {VERSION}")
        if length > LARGEST_HEADER or hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
            raise _bad(self._path, "it is broken: its checksum does not fit")
        self._at = _HEAD.size + length
        try:
            header = json.loads(data[_HEAD.size : self._at])
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict):
            raise _bad(self._path, "its header is no JSON object")
        return header

    def _sizes(self, header: dict[str, Any]) -> tuple[int, list[tuple[int, int]]]:
        vocab_size, laws = header.get("vocab_size"), header.get("laws")
        if not _count(vocab_size, LARGEST_VOCABULARY) or not vocab_size:
            raise _bad(self._path, f"a vocabulary of {vocab_size!r} tokens is not possible"[:200])
        if not isinstance(laws, list) or len(laws) > ORDERS:
            raise _bad(self._path, f"it needs laws of at most {ORDERS} orders")
        for size in laws:
            pair = isinstance(size, list) and len(size) == 2
            if not pair or not all(_count(number, LARGEST_FILE) for number in size):
                raise _bad(self._path, "the sizes of its laws are no counts")
        return vocab_size, [(keys, ids) for keys, ids in laws]

    def _check_length(self, kind: str, vocab_size: int, sizes: list[tuple[int, int]]) -> None:
        width = array(kind).itemsize + 1
        needed = vocab_size * FIRSTS * width
        needed += sum(keys * 6 + ids * width for keys, ids in sizes)
        if self._at + needed + _DIGEST != len(self._data):
            raise _bad(self._path, "its parts are not as long as its header says")

    def _laws(self, kind: str, vocab_size: int, keys: int, ids: int) -> Laws:
        known = self._array("I", keys)
        if any(left >= right for left, right in pairwise(known)):
            raise _bad(self._path, "the keys of its laws are not in order")
        supports, lengths = self._bytes(keys), self._bytes(keys)
        if sum(lengths) != ids or max(lengths, default=0) > LONGEST_LAW:
            raise _bad(self._path, "the lengths of its laws do not fit")
        starts = array("I", accumulate(lengths, initial=0))
        return Laws(
            known, supports, starts, self._array(kind, ids, below=vocab_size), self._bytes(ids)
        )

    def _array(self, kind: str, count: int, below: int = 0) -> Sequence[int]:
        values = array(kind)
        values.frombytes(self._bytes(count * values.itemsize))
        if sys.byteorder == "big":
            values.byteswap()
        if below and count and max(values) >= below:
            raise _bad(self._path, f"token {max(values)} is beyond its vocabulary of {below}")
        return values

    def _bytes(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        return self._data[start : self._at]

    def _text(self, header: dict[str, Any], name: str) -> str:
        value = header.get(name)
        if not isinstance(value, str) or len(value) > 1024 or not value.isprintable():
            raise _bad(self._path, f"its {name} is no name")
        return value

    def _weights(self, header: dict[str, Any]) -> dict[str, float]:
        weights = header.get("weights")
        if not isinstance(weights, dict) or not all(map(_is_weight, weights.values())):
            raise _bad(self._path, f"its weights are no numbers up to {LARGEST_WEIGHT:g}")
        return {name: float(value) for name, value in weights.items()}


def _bad(path: Path, why: str) -> StartError:
    return StartError(f"ngrams: {path} cannot be used: {why}")


def _count(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _is_weight(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= LARGEST_WEIGHT  # type: ignore[arg-type]


def _id_type(vocab_size: int) -> str:
    return "H" if vocab_size <= 1 << 16 else "I"


def _packed(kind: str, values: Sequence[int]) -> bytes:
    packed = array(kind, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
