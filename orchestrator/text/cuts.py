"""Where a text may be cut so that its parts have, one after another, the tokens of the whole.

A long text is then tokenized in parts: from its end, as many as are wanted, in little memory.
A cut stands between a letter or digit (`_INSIDE`) and a space, line end or mark behind it. What
must hold there, of every text:

1. No added token is matched across it, nor looks across it.
2. The normalizer makes of both parts what it makes of the whole.
3. The words that the pre-tokenizer finds end there: it tries its rules from left to right, none
   of them looks back, none that is known here matches a pair that is cut, and one of them takes
   up what follows. Or it finds no words, and no token of the vocabulary stands across the cut,
   so that no merge does.

Where a rule is unknown there is no cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.text.lengths import Rule, rules_of

_INSIDE = "0-9A-Za-zÀ-ÖØ-öø-ÿΑ-ΡΣ-Ωα-ωА-яא-תء-غف-يก-ะぁ-ゖァ-ヺ一-龥가-힣"
"""Letters and digits by every version of Unicode."""
_BEHIND = " \n,.;:!?)/。，、！？；：」）"
_SPACE = "▁"
"""What many vocabularies write for a space."""

_AT_A_TIME = 1024
"""Characters that are searched for a cut."""

_ACROSS = re.compile(f"^[{_INSIDE}]|[{_INSIDE}]$|[{_INSIDE}][{re.escape(_BEHIND)}]")
"""In an added token: what stands on the other side of a cut may matter to it."""

_WHITE = r"\s+"
_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
_HEAD, _ANY = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST, _SHORT = r"[^\r\n\p{L}\p{N}]?", f"(?i:{'|'.join(_CONTRACTIONS)})"
_MARKS = frozenset(
    (
        r" ?[^\s\p{L}\p{N}]+",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        r" ?[\p{P}\p{S}]+[\r\n]*",
    )
)
"""Of these a rule that finds words needs one, beside `_WHITE`, to take up what stands behind."""
_KNOWN = _MARKS | {
    *_CONTRACTIONS,
    _WHITE,
    _SHORT,
    "'(?i:[sdmt]|ll|ve|re)",
    r" ?\p{L}+",
    _FIRST + r"\p{L}+",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+",
    _FIRST + r"[\p{L}\p{M}]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
    "[一-龥぀-ゟ゠-ヿ]+",
    *(f"{_FIRST}{_HEAD}{a}{_ANY}{b}{s}" for a, b in ("*+", "+*") for s in ("", f"{_SHORT}?")),
    r" ?\p{N}+",
    r"\p{N}+",
    r"\p{N}",
    r"\p{N}{1,3}",
    r"\s*[\r\n]+",
    r"\s*[\r\n]",
    r"\s+(?!\S)",
}
"""The parts of the expressions of GPT-2, cl100k, o200k, Llama 3, Qwen, DeepSeek and Tekken."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where a tokenizer's texts may be cut.

    `mute`: the space behind a cut is left out, as the tokenizer puts one there by itself.
    """

    at: re.Pattern[str]
    mute: bool = False

    def before(self, text: str, at: int, least: int) -> int | None:
        """The last place to cut that is not behind `at`, nor before `least`; None: none is."""
        while at > least:
            start = max(least, at - _AT_A_TIME)
            # What a cut stands between is one character before it, and two behind.
            found = [one.end() for one in self.at.finditer(text, max(0, start - 1), at + 2)]
            if places := [place for place in found if start <= place <= at]:
                return places[-1]
            at = start
        return None


def cuts_of(written: Rule) -> Cuts | None:
    """Of a tokenizer as it is written to a file; None where it offers no safe cut."""
    behind, added = _BEHIND, written["added_tokens"]
    changes, splits = rules_of(written)
    spaced = any(rule["type"] == "Replace" for rule in changes)
    names = (
        token["content"].replace(_SPACE, " ") if spaced else token["content"] for token in added
    )
    if any(map(_ACROSS.search, names)) or any(token["single_word"] for token in added):
        return None
    if not all(map(_keeps, changes)):
        return None
    mute = any(rule["type"] == "Prepend" for rule in changes)
    if not any(map(_finds_words, splits)):
        spaced |= any(rule["type"] == "Metaspace" for rule in splits)
        behind = _untied(written["model"], spaced)
    # What comes behind it sees bytes written as letters.
    bytes_last = all(rule["type"] != "ByteLevel" for rule in splits[:-1])
    if not bytes_last or not all(_is_known(rule, spaced) for rule in splits):
        return None
    if mute or any(map(_begins_with_space, splits)):
        behind = " " if " " in behind else ""
    if not behind or (mute and not spaced):
        return None
    after = f"(?= [{_INSIDE}])" if mute else f"(?=[{re.escape(behind)}])"
    return Cuts(re.compile(f"[{_INSIDE}]{after}"), mute)


def _keeps(normalizer: Rule) -> bool:
    """Whether what it makes of a text it makes of parts that are cut."""
    match normalizer:
        case {"type": "NFC"} | {"type": "Prepend", "prepend": "▁"}:
            return True
        case {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}:
            return True
    return False


def _is_known(rule: Rule, spaced: bool) -> bool:
    """Whether a pre-tokenizer neither looks back nor takes both sides of a cut together."""
    match rule:
        case {"type": "ByteLevel" | "Digits"} | {"type": "Metaspace", "replacement": "▁"}:
            return True
        case {"type": "Split", "pattern": {"String": " "}}:
            return spaced  # There is no space left.
        case {"type": "Split", "pattern": {"Regex": str(expression)}, "behavior": "Isolated"}:
            return set(_alternatives(expression)) <= _KNOWN
        case {"type": "Split", "pattern": {"Regex": str(expression)}, "behavior": "Removed"}:
            return bool(rule["invert"]) and set(_alternatives(expression)) <= _KNOWN
    return False


def _finds_words(rule: Rule) -> bool:
    """Whether a word ends at every cut."""
    match rule:
        case {"type": "ByteLevel"}:
            return bool(rule["use_regex"])
        case {"type": "Split", "pattern": {"Regex": str(expression)}}:
            parts = set(_alternatives(expression))
            return _WHITE in parts and not parts.isdisjoint(_MARKS)
    return False


def _begins_with_space(rule: Rule) -> bool:
    """Whether it puts a space in front of a text that has none there."""
    prepends = rule["type"] == "Metaspace" and rule.get("prepend_scheme") != "never"
    return prepends or bool(rule.get("add_prefix_space"))


def _alternatives(expression: str) -> Iterator[str]:
    """The parts of an expression between bars that stand in no bracket."""
    start = depth = 0
    escaped = square = False
    for index, one in enumerate(expression):
        if escaped:
            escaped = False
        elif one == "\\":
            escaped = True
        elif square:
            square = one != "]"
        elif one == "[":
            square = True
        elif one in "()":
            depth += 1 if one == "(" else -1
        elif one == "|" and not depth:
            yield expression[start:index]
            start = index + 1
    yield expression[start:]


def _untied(model: Rule, spaced: bool) -> str:
    """What may stand behind a cut where no words are found: no token has it behind its inside."""
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    if model["type"] != "BPE" or model["dropout"] or model["ignore_merges"] or affixes:
        return ""
    # An unknown character may become one token with the next.
    if not spaced or _SPACE not in model["vocab"]:
        return ""
    tied = set(re.findall(f"(?<=[{_INSIDE}])[^{_INSIDE}]", "\0".join(model["vocab"])))
    known = (one for one in _BEHIND if one in model["vocab"] or one == " ")
    return "".join(one for one in known if (_SPACE if one == " " else one) not in tied)
