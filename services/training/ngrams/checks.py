"""What is refused before an n-gram file is made, one line each."""

from __future__ import annotations

import hashlib
from pathlib import Path

from services.contract.errors import StartError
from services.engine.ngram_file import FIRSTS
from services.training.distill.checks import (
    WEIGHT_BYTES,
    Commission,
    check_amounts,
    check_context,
    check_place,
    check_room,
    device_of,
    free_bytes,
    free_disk,
    kv_bytes,
    read_sources,
)
from services.training.distill.target import Target, read_target
from services.training.distill.texts import LAW_BYTES
from services.training.distill.work import WorkFolder, plan_of
from services.training.ngrams.options import NgramOptions

LARGEST_TEXT = 1 << 26


def check(options: NgramOptions) -> tuple[Commission, list[str]]:
    """The texts to write and those given; StartError for what cannot be done."""
    check_place(options)
    sources = read_sources(options)
    check_amounts(options, 1)
    given = [_text_of(path) for path in options.texts]
    device = device_of(options.device)
    target = read_target(options.target)
    check_context(options, target, sources.openings)
    _check_size(options, target)
    extra = {"content of texts": [hashlib.sha256(t.encode()).hexdigest()[:16] for t in given]}
    plan = plan_of(options, target.weights, extra)
    work = WorkFolder(options.work_folder)
    work.require_plan(plan)
    needed = (
        target.parameters * WEIGHT_BYTES + options.write * LAW_BYTES + kv_bytes(options, target)
    )
    check_room("memory", needed, free_bytes(device))
    check_room("disk", options.write * LAW_BYTES + options.most_bytes, free_disk(work.path))
    return Commission(options, target, device, sources, work, plan), given


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
