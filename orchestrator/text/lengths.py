"""A lower bound on the tokens of a text, by its bytes, where the tokenizer allows one.

A text of n bytes has at least n / (bytes of the longest token) tokens. The bound must hold for
every text: no step of the tokenizer may drop bytes without a token for them. Added tokens that
swallow spaces, words that become one unknown token, and unknown rules give no bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from services.contract.token_bytes import ALPHABET

_COMPOSED = 9
"""NFC: of the bytes of any text, a ninth stays at least. Taken apart, 3 bytes become 1 at the
least (the Kelvin sign); put together, 9 become 3 (Hangul)."""
_KEEPING = ("ByteLevel", "Metaspace", "Digits", "UnicodeScripts")
_SPLITTING = ("Split", "Punctuation")

Rule = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reach:
    """A token stands for `longest` bytes at most, not counting those that no token stands for."""

    longest: int
    silent: bytes = b""

    def least_tokens(self, text: str) -> int:
        """How many tokens a text has at least."""
        heard = text.encode().translate(None, self.silent)
        return -(-len(heard) // self.longest)


def reach_of(written: Rule) -> Reach | None:
    """Of a tokenizer as it is written to a file; None where nothing holds for every text."""
    changes, splits = rules_of(written)
    added: list[Rule] = written["added_tokens"]
    if not all(map(_keeps, splits)) or swallows(added, "lstrip") or swallows(added, "rstrip"):
        return None
    byte_level = any(rule["type"] == "ByteLevel" for rule in (*changes, *splits))
    known = _byte_level(written["model"]) if byte_level else _by_character(written["model"])
    factors = [_shrinks(rule) for rule in changes]
    if known is None or None in factors or (known.silent and changes):
        return None
    every = (known.longest, *(_bytes(token["content"]) for token in added))
    return Reach(max(every) * prod(factor or 1 for factor in factors), known.silent)


def swallows(added_tokens: list[Rule], side: str) -> bool:
    """Whether an added token takes the spaces on this side of it, however many."""
    return any(token.get(side) for token in added_tokens)


def rules_of(written: Rule) -> tuple[list[Rule], list[Rule]]:
    """The rules by which it changes a text, and those by which it splits it."""
    changes = _rules(written["normalizer"], "normalizers")
    return list(changes), list(_rules(written["pre_tokenizer"], "pretokenizers"))


def _rules(rule: Rule | None, nested: str) -> Iterator[Rule]:
    """The rule, or those of a sequence."""
    if rule is None:
        return
    if rule["type"] != "Sequence":
        yield rule
        return
    for part in rule[nested]:
        yield from _rules(part, nested)


def _shrinks(normalizer: Rule) -> int | None:
    """How many times as long as its output a text may be; None: any number."""
    match normalizer:
        case {"type": "Prepend" | "ByteLevel"}:
            return 1
        case {"type": "NFC"}:
            return _COMPOSED
        case {"type": "Replace", "pattern": {"String": str(before)}, "content": str(after)}:
            return 1 if _bytes(after) >= _bytes(before) else None
    return None


def _keeps(pre_tokenizer: Rule) -> bool:
    kind = pre_tokenizer["type"]
    return kind in _KEEPING or (kind in _SPLITTING and pre_tokenizer.get("behavior") != "Removed")


def _byte_level(model: Rule) -> Reach | None:
    """BPE whose vocabulary is written byte by byte; it passes over a byte that it does not have."""
    if model["type"] != "BPE":
        return None
    vocabulary = model["vocab"]
    silent = (byte for written, byte in ALPHABET.items() if written not in vocabulary)
    return Reach(max(map(len, vocabulary)), bytes(silent))


def _by_character(model: Rule) -> Reach | None:
    """BPE that has a token for every character, or for each of its bytes."""
    if model["type"] != "BPE":
        return None
    vocabulary = model["vocab"]
    fallback = model["byte_fallback"] and all(f"<0x{b:02X}>" in vocabulary for b in range(256))
    if not fallback and (model["unk_token"] not in vocabulary or model["fuse_unk"]):
        return None
    return Reach(max(4, *map(_bytes, vocabulary)))


def _bytes(text: str) -> int:
    return len(text.encode())
