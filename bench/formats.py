"""What each number format costs and changes: steps, prompts, memory, and how far from float32.

    python -m bench.formats --formats float32,float16,int8

Milliseconds are the least of several turns, of the formats one after the other: a step of so many
rows of one session behind 200 tokens, and a prompt of 500. How far a format is from float32: over
so many tokens of Spec-Bench's prompts (Xia et al., 2401.07851), each after the ones before it, how
often both have the same most likely token, and the mean and the largest Kullback-Leibler
divergence of a next token's distribution. On another CPU than the one that serves,
ATEN_CPU_CAPABILITY=avx2 takes kernels away.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.command import listed, measuring_parser, run, say, table
from bench.prompts import SPEC_BENCH, read_prompts
from services.engine.native import NativeEngine
from services.engine.native.dialogue import tokenizer_of
from services.engine.native.packing import PackedLinear
from services.engine.number_formats import Products, cpu, number_format
from services.engine.port import Segment
from services.engine.spec import DTYPES, ModelSpec

BEHIND, PROMPT, PIECE = 200, 500, 500
"""Tokens before a step, of a prompt that is timed, and of a text that is compared."""
_TURNS = 5
_BLOCK = 512


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of each format."""
    engines = {name: _load(arguments, name) for name in ("float32", *arguments.formats)}
    texts = _texts(engines["float32"], arguments.tokens)
    exact = [_log_probabilities(engines["float32"], text) for text in texts]
    formats = []
    for name, engine in engines.items():
        say(f"{name}: how far from float32")
        formats.append({"format": name} | _distance(engine, texts, exact))
    say("steps")
    times = _times(list(engines.values()), arguments.rows, texts[0])
    return {
        "cpu": str(cpu()),
        "formats": [row | own for row, own in zip(formats, times, strict=True)],
    }


def _load(arguments: argparse.Namespace, dtype: str) -> NativeEngine:
    say(f"{dtype}: loading")
    spec = ModelSpec(
        arguments.model,
        dtype,
        threads=arguments.threads,
        kv_capacity_tokens=4 * PROMPT,
        batch_invariant=None,
    )
    return NativeEngine.load(spec)


def _texts(engine: NativeEngine, tokens: int) -> list[list[int]]:
    """So many tokens of prompts, in pieces."""
    assert engine.bundle is not None
    tokenizer, ids = tokenizer_of(engine.bundle), list[int]()
    for prompt in read_prompts(SPEC_BENCH):
        ids += tokenizer.encode(prompt.text + "\n\n", add_special_tokens=False)
        if len(ids) >= tokens:
            break
    ids = ids[:tokens]
    return [ids[start : start + PIECE] for start in range(0, len(ids), PIECE)]


def _log_probabilities(engine: NativeEngine, text: Sequence[int]) -> Tensor:
    """Of what follows each token of a text [n, V]."""
    cache = engine.new_cache(len(text))
    (rows,) = engine.forward([Segment(cache, list(text))])
    cache.free()
    return rows.log_softmax(-1)


def _distance(
    engine: NativeEngine, texts: Sequence[Sequence[int]], exact: Sequence[Tensor]
) -> dict[str, Any]:
    same, apart = [], []
    for text, ours in zip(texts, exact, strict=True):
        theirs = _log_probabilities(engine, text)
        same.append(ours.argmax(-1) == theirs.argmax(-1))
        apart.append((ours.exp() * (ours - theirs)).sum(-1))
    divergence = torch.cat(apart)
    return {
        "same best": float(torch.cat(same).double().mean()),
        "KL": float(divergence.mean()),
        "largest KL": float(divergence.max()),
        "weights, MB": _bytes(engine) / 1e6,
        "invariant": "yes" if engine.batch_invariant else "no",
    }


def _bytes(engine: NativeEngine) -> float:
    """Of all products' weights, as they are packed, and of codes beside them."""
    width = {"float32": 4, "int8": 1}.get(engine.dtype, 2)
    products = [one for one in engine.model.modules() if isinstance(one, PackedLinear)]
    # FBGEMM rounds columns of fp16 up.
    block = _BLOCK if number_format(engine.dtype).products is Products.HALF else 1
    numbers = sum(-(-one.in_features // block) * block * one.out_features for one in products)
    return width * numbers + sum(one.code_bytes for one in products)


def _times(
    engines: Sequence[NativeEngine], rows: Sequence[int], text: Sequence[int]
) -> list[dict[str, float]]:
    """Least milliseconds of each engine, in turns."""
    best: list[dict[str, float]] = [{} for _ in engines]
    for _ in range(_TURNS):
        for engine, own in zip(engines, best, strict=True):
            for name, took in _turn(engine, rows, text).items():
                own[name] = min(own.get(name, took), took)
    return best


def _turn(engine: NativeEngine, rows: Sequence[int], text: Sequence[int]) -> dict[str, float]:
    whole = (list(text) * PROMPT)[:PROMPT]
    cache = engine.new_cache(PROMPT)
    took = {
        f"{PROMPT} tokens": _ms(
            lambda: engine.forward([Segment(cache, whole, logits_from=PROMPT - 1)])
        )
    }
    cache.rollback(BEHIND)
    for count in rows:
        for name in ("", f"{count} rows"):  # The first one warms the caches up.
            step = Segment(cache, whole[:count])
            took[name] = _ms(lambda step=step: engine.forward([step]))  # type: ignore[misc]
            cache.rollback(BEHIND)
    cache.free()
    return {name: ms for name, ms in took.items() if name}


def _ms(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return (time.perf_counter() - start) * 1e3


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    first = report["formats"][0]
    kinds = {"same best": ".3f", "KL": ".5f", "largest KL": ".3f", "weights, MB": ".0f"}
    timed = {name: ".1f" for name in first if name.endswith((" rows", " tokens"))}
    return table({"format": "", **kinds, "invariant": "", **timed}, report["formats"])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__, tokens=2000)
    formats = [name for name in DTYPES if name != "float32"]
    made.add_argument("--formats", type=listed(str), default=formats, help="beside float32")
    made.add_argument("--rows", type=listed(int), default=[1, 2, 4, 8, 16], help="of a step")
    return made


if __name__ == "__main__":
    run(parser(), measure, show)
