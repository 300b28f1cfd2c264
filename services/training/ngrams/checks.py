"""What is refused before an n-gram file is made, one line each."""

from __future__ import annotations

import hashlib
from pathlib import Path

from services.contract.errors import StartError
from services.engine.ngram_file import FIRSTS
from services.training.distill.checks import (
    WEIGHT_BYTES,
    Commission,
    ground_of,
    kv_bytes,
    planned,
)
from services.training.distill.target import Target
from services.training.distill.texts import LAW_BYTES
from services.training.ngrams.options import NgramOptions

LARGEST_TEXT = 1 << 26


def check(options: NgramOptions) -> tuple[Commission, list[str]]:
    """The texts to write and those given; StartError for what cannot be done."""
    given = [_text_of(path) for path in options.texts]
    ground = ground_of(options, 1)
    target, laws = ground.target, options.write * LAW_BYTES
    _check_size(options, target)
    work, plan = planned(
        options,
        ground,
        {"content of texts": [hashlib.sha256(t.encode()).hexdigest()[:16] for t in given]},
        memory=target.parameters * WEIGHT_BYTES + laws + kv_bytes(options, target),
        disk=laws + options.most_bytes,
    )
    return Commission(options, *ground, work, plan), given


def _check_size(options: NgramOptions, target: Target) -> None:
    least = first_bytes(target.vocab_size) + 65_536
    if options.most_bytes < least:
        raise StartError(
            f"--most-bytes: {options.most_bytes} are too few; what follows each of "
            f"{target.vocab_size} tokens alone takes {least}"
        )


def first_bytes(vocab_size: int) -> int:
    """What the tokens after one token take in a file."""
    return vocab_size * FIRSTS * id_bytes(vocab_size)


def id_bytes(vocab_size: int) -> int:
    """A token id with its code."""
    return 3 if vocab_size <= 1 << 16 else 5


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_TEXT:
            raise StartError(f"--texts: {path} is larger than {LARGEST_TEXT >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StartError(f"--texts: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartError(f"--texts: {path} is no text in UTF-8") from None
