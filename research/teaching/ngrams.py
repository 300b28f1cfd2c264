"""An n-gram file from what `research.teaching` wrote on a GPU.

    python -m research.teaching.ngrams --taught DIR --out FILE.bin --most-bytes 5000000

DIR has `laws.npz`, worth more bytes than the file gets, and `lessons.npz`, texts that were held
out: the weights of the sources are fitted to some of them. What follows each token alone is taken
from the file that `--beside` names.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from services.contract.top_rows import MOST_ROWS
from services.engine import start
from services.engine.native import NativeEngine
from services.engine.ngram_file import (
    ORDERS,
    Laws,
    Lesson,
    load_ngrams,
    ngrams_path,
    save_ngrams,
)
from services.engine.spec import ModelSpec
from services.engine.threads import pin
from services.training.ngrams.fitting import fit
from services.training.ngrams.informants import head_says, model_says
from services.training.ngrams.laws import HEAD_BYTES, packed
from services.training.ngrams.rows import TargetReader

_ENTRY_BYTES = 3


def cut_laws(taught: Mapping[str, Any], most_bytes: int) -> tuple[Laws, ...]:
    """The laws of all orders that are worth `most_bytes`, of those in `laws.npz`."""
    orders = range(1, ORDERS + 1)
    worths = np.concatenate([taught[f"worths{order}"] for order in orders]).astype(np.float64)
    lengths = np.concatenate([taught[f"lengths{order}"] for order in orders]).astype(np.int64)
    best = np.argsort(-worths, kind="stable")
    sizes = HEAD_BYTES + _ENTRY_BYTES * lengths
    kept = np.zeros(len(worths), dtype=bool)
    kept[best[np.cumsum(sizes[best]) <= most_bytes]] = True
    bounds = np.cumsum([len(taught[f"keys{order}"]) for order in orders])[:-1]
    return tuple(
        _laws(taught, order, keep)
        for order, keep in zip(orders, np.split(kept, bounds), strict=True)
    )


def _laws(taught: Mapping[str, Any], order: int, kept: Any) -> Laws:
    lengths = taught[f"lengths{order}"].astype(np.int64)
    entries = np.repeat(kept, lengths)
    return packed(
        taught[f"keys{order}"][kept],
        taught[f"counts{order}"][kept],
        lengths[kept],
        taught[f"ids{order}"][entries],
        taught[f"chances{order}"][entries].astype(np.float64),
    )


def lessons_of(taught: Mapping[str, Any], count: int) -> list[Lesson]:
    """So many of the texts that were held out, evenly chosen."""
    starts, ends = taught["starts"].tolist(), taught["ends"].tolist()
    firsts = np.cumsum([0, *(end - begin for begin, end in zip(starts, ends, strict=True))])
    ids, logs = taught["ids"], np.log(np.maximum(taught["chances"].astype(np.float32), 6e-8))
    lessons = []
    for place in range(0, len(starts), max(1, len(starts) // count)):
        rows = slice(firsts[place], firsts[place + 1])
        lessons.append(
            Lesson(
                taught["tokens"][place][: ends[place]].tolist(),
                starts[place],
                ids[rows].tolist(),
                logs[rows].astype(float).tolist(),
                greedy=float(taught["heats"][place]) == 0.0,
            )
        )
    return lessons


def informed(
    lessons: Sequence[Lesson], target: NativeEngine, draft: str | None, head: str | None, name: str
) -> list[Lesson]:
    """The lessons with what a draft model and a head say at their places."""
    found = list(lessons)
    if draft is not None:
        says = model_says(NativeEngine.load(ModelSpec(draft, base=name, kv_capacity_tokens=8192)))
        found = [replace(one, draft=says(one)) for one in found]
    if head is not None:
        says = head_says(start.head(ModelSpec(head, base=name, kv_capacity_tokens=8192)), target)
        found = [replace(one, head=says(one)) for one in found]
    return found


def main() -> None:
    """Cut, fit, write."""
    asked = _parser().parse_args()
    pin(asked.threads)
    base = load_ngrams(ngrams_path(asked.beside))
    laws = cut_laws(np.load(asked.taught / "laws.npz"), asked.most_bytes)
    target = NativeEngine.load(ModelSpec(asked.target, asked.dtype, kv_capacity_tokens=16384))
    lessons = lessons_of(np.load(asked.taught / "lessons.npz"), asked.lessons)
    lessons = informed(lessons, target, asked.draft, asked.head, asked.target)
    trial = replace(base, laws=laws, weights={}, card={})
    reader = TargetReader(target, max(len(one.tokens) for one in lessons) + MOST_ROWS)
    weights = fit(lessons, trial, reader)
    reader.close()
    save_ngrams(asked.out, replace(trial, weights=weights))
    contexts = [len(part.keys) for part in laws]
    print(f"{asked.out}: {contexts} contexts, {asked.out.stat().st_size} bytes")


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--taught", type=Path, required=True, help="what research.teaching wrote")
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--most-bytes", type=int, default=5_000_000, help="of the laws")
    made.add_argument("--beside", default="smollm2-135m-instruct-ngrams")
    made.add_argument("--target", default="smollm2-135m-instruct")
    made.add_argument("--draft", help="a draft model that is to draft beside the file")
    made.add_argument("--head", help="a head that is to draft beside the file")
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--lessons", type=int, default=66)
    made.add_argument("--threads", type=int, default=1)
    return made


if __name__ == "__main__":
    main()
