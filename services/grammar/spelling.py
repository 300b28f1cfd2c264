"""A tokenizer as it writes text that a format has settled: every character as it is.

Where a format leaves one text alone, llguidance lets the model say that text's own tokens. A
tokenizer that reads another Unicode form, other case or other blanks than are written would have
it say those, which the format does not allow.
"""

from __future__ import annotations

import json
from typing import Any

_BLANK = "\u2581"
"""What SentencePiece writes for a space."""
_CUTS = frozenset({"ByteLevel", "Metaspace", "Split", "Punctuation", "Digits", "UnicodeScripts"})
"""Pre-tokenizers that lose nothing, once what they cut at stays."""

Rule = dict[str, Any]


def spelling(tokenizer_json: str) -> str:
    """The same tokenizer without what changes a text before it is encoded.

    Raises ValueError for what is no tokenizer.
    """
    written = json.loads(tokenizer_json)
    normalizers = filter(_writes_blanks, _steps(written.get("normalizer"), "normalizers"))
    written["normalizer"] = {"type": "Sequence", "normalizers": list(normalizers)}
    cuts = [_kept(one) for one in _steps(written.get("pre_tokenizer"), "pretokenizers")]
    written["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [one for one in cuts if one]}
    return json.dumps(written)


def _steps(rule: Rule | None, inner: str) -> list[Rule]:
    """What a rule does, step by step."""
    if rule is None:
        return []
    if rule["type"] != "Sequence":
        return [rule]
    return [step for one in rule[inner] for step in _steps(one, inner)]


def _writes_blanks(normalizer: Rule) -> bool:
    """Whether it only says how a space is written."""
    match normalizer:
        case {"type": "Prepend", "prepend": text} | {"type": "Replace", "content": text}:
            return bool(text == _BLANK)
        case _:
            return False


def _kept(cut: Rule) -> Rule | None:
    if cut["type"] not in _CUTS:
        return None
    kept = dict(cut)
    if cut["type"] == "ByteLevel":
        kept["add_prefix_space"] = False
    if str(cut.get("behavior")).lower() == "removed":
        kept["behavior"] = "Isolated"
    return kept
