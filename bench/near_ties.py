"""By how much the margin of a choice differs between single steps and blocks.

    python -m bench.near_ties --dtype bfloat16

The target answers prompts of Spec-Bench greedily, one token at a time. Then it reads the same
tokens in blocks, as verification does. At each token stands the margin between the two best
logits of the single step; between the same two tokens, the block has another. What 99 changes in
100 stay below is the threshold of near-ties (`services.engine.sampling.ties`); `near` says how many
tokens are under the one in use, `turned` where the block has another best token.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from bench.agreement import chosen
from bench.command import measuring_parser, run, table
from services.engine.native import NativeEngine
from services.engine.native.dialogue import dialogue_of, tokenizer_of
from services.engine.port import KVCache, Segment
from services.engine.sampling import rounding
from services.engine.spec import ModelSpec
from services.engine.threads import pin

BLOCKS = (2, 3, 5, 8, 12)
_QUANTILES = {"half": 0.5, "9 in 10": 0.9, "99 in 100": 0.99, "all": 1.0}


@dataclass(frozen=True, slots=True)
class Pairs:
    """Of some rows: margins of single steps, how much blocks change them, and who chose another."""

    margins: Tensor
    changes: Tensor
    turned: Tensor


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """The quantiles of the changes, for all rows and for each size of block."""
    pin(asked.threads)
    engine = NativeEngine.load(ModelSpec(asked.model, asked.dtype))
    found: dict[int, list[Pairs]] = {size: [] for size in BLOCKS}
    for prompt in _prompts(engine, asked.prompts):
        cache = engine.new_cache(len(prompt) + asked.tokens)
        [rows] = engine.forward([Segment(cache, prompt, logits_from=len(prompt) - 1)])
        tokens, alone = answered(engine, cache, int(rows[-1].argmax()), asked.tokens)
        for size in BLOCKS:
            cache.rollback(len(prompt))
            found[size].append(compared(alone, in_blocks(engine, cache, tokens, size)))
        cache.free()
    named = {str(size): pairs for size, pairs in found.items()}
    named["all"] = list(chain.from_iterable(found.values()))
    threshold = rounding(asked.dtype)
    return {"blocks": [_figures(name, pairs, threshold) for name, pairs in named.items()]}


def answered(
    engine: NativeEngine, cache: KVCache, first: int, count: int
) -> tuple[list[int], Tensor]:
    """So many tokens of a greedy answer that are fed one by one, and the rows [count, V] after."""
    tokens, rows = [first], []
    for _ in range(count):
        [row] = engine.forward([Segment(cache, tokens[-1:])])
        rows.append(row[-1])
        tokens.append(int(row[-1].argmax()))
    return tokens[:-1], torch.stack(rows)


def in_blocks(engine: NativeEngine, cache: KVCache, tokens: Sequence[int], size: int) -> Tensor:
    """The same rows, of blocks of so many tokens behind each other."""
    blocks = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    return torch.cat([engine.forward([Segment(cache, block)])[0] for block in blocks])


def compared(alone: Tensor, block: Tensor) -> Pairs:
    """The rows [R, V] of single steps and of blocks."""
    best = alone.topk(2).indices
    first, second = alone.gather(-1, best).T
    margins = first - second
    one, other = block.gather(-1, best).T
    return Pairs(margins, (one - other - margins).abs(), block.argmax(-1) != best[:, 0])


def _prompts(engine: NativeEngine, count: int) -> Iterator[list[int]]:
    assert engine.bundle is not None
    tokenizer = tokenizer_of(engine.bundle)
    dialogue = dialogue_of(tokenizer)
    for prompt in chosen(count):
        yield dialogue.prompt(tokenizer.encode(prompt.text, add_special_tokens=False))


def _figures(block: str, pairs: Sequence[Pairs], threshold: float) -> dict[str, Any]:
    margins = torch.cat([own.margins for own in pairs])
    changes = torch.cat([own.changes for own in pairs]).double()
    turned = torch.cat([own.turned for own in pairs])
    return {
        "block": block,
        "rows": len(changes),
        **{name: float(changes.quantile(share)) for name, share in _QUANTILES.items()},
        "near": float((margins <= threshold).double().mean()),
        "turned": int(turned.sum()),
        "widest": float(margins[turned].max()) if turned.any() else 0.0,
    }


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    columns = dict.fromkeys(_QUANTILES, ".2g")
    shown = {"block": "", "rows": "", **columns, "near": ".2%", "turned": "", "widest": ".2g"}
    return table(shown, report["blocks"])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return measuring_parser(__doc__, dtype="bfloat16", prompts=20, tokens=32)


if __name__ == "__main__":
    run(parser(), measure, show)
