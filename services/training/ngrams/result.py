"""The card of an n-gram file: what it was made from, and what it knows of texts held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.engine.ngram_file import FIRSTS, NgramFile, extend_key
from services.training.distill.card import time_of, written_at
from services.training.distill.checks import Commission
from services.training.distill.material import Material
from services.training.distill.texts import Text
from services.training.ngrams.options import NgramOptions


def card_of(
    job: Commission, options: NgramOptions, file: NgramFile, material: Material
) -> dict[str, Any]:
    """The card as JSON has it."""
    texts, laws, held, held_laws = material.counts
    return {
        "target": options.target,
        "contexts": [len(part.keys) for part in file.laws],
        "texts": texts + held,
        "laws": laws + held_laws,
        "given_texts": len(options.texts),
        "excluded_prompts": len(job.sources.excluded),
        "draft": options.draft or "",
        "temperatures": list(options.temperatures),
        "writing_dtype": options.dtype,
        "writing_seconds": job.work.seconds,
        "coverage": coverage(file, material.held),
        "held_out_laws": held_laws,
        "seed": options.seed,
        "command": options.command,
    }


def coverage(file: NgramFile, texts: Sequence[Text]) -> list[float]:
    """How often the likeliest token is named after a token alone, and after 1 to 4 tokens."""
    found, places = [0] * (1 + len(file.laws)), 0
    for text in texts:
        tokens = text.token_ids.tolist()
        for prefix, ids in zip(text.prefixes.tolist(), text.law_ids[:, 0].tolist(), strict=True):
            places += 1
            _note(file, tokens[max(0, prefix - 4) : prefix], ids, found)
    return [round(count / max(1, places), 3) for count in found]


def _note(file: NgramFile, context: Sequence[int], token: int, found: list[int]) -> None:
    start = context[-1] * FIRSTS
    named = zip(
        file.first_ids[start : start + FIRSTS],
        file.first_codes[start : start + FIRSTS],
        strict=True,
    )
    found[0] += any(code and first == token for first, code in named)
    key = 0
    for order, laws in enumerate(file.laws[: len(context)]):
        key = extend_key(key, context[-1 - order])
        law = laws.find(key)
        if law >= 0:
            found[order + 1] += token in laws.ids[laws.starts[law] : laws.starts[law + 1]]


def readme(card: Mapping[str, Any]) -> str:
    """The card for people, in Markdown."""
    covered = " | ".join(f"{share:.0%}" for share in card["coverage"])
    return _README.format(
        **card,
        counts=", ".join(f"{count}" for count in card["contexts"]),
        covered=covered,
        written=written_at(card),
        beside=card["draft"] or "none",
        time=time_of(card["writing_seconds"]),
    )


_README = """# What {target} says after a few tokens

An n-gram file for the drafting method `ngram`: no model runs to use it. It was made from its
target, which verifies every drafted token, so the output distribution is the target's.

| | |
|---|---|
| contexts of 1, 2, 3, 4 tokens | {counts} |
| texts | {texts}, with {laws} distributions, written by the target {written} |
| text files given | {given_texts} |
| prompts excluded | {excluded_prompts} |
| weighed beside a draft model | {beside} |

Of {held_out_laws} places of written texts, most of which the file has seen, so often is the
target's likeliest token named after

| one token alone | 1 | 2 | 3 | 4 tokens |
|---|---|---|---|---|
| {covered} |

Made by

    {command}
"""
