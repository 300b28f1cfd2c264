"""Tokens per verification by the shape of the draft: no services, no clock.

    python -m research.trees --draft DIR

The target answers real prompts. At every place of its answers the draft model says its
best candidates; which of them is the target's own token is all that decides how far a
verification gets down a chain, a comb or a tree of any shape. So one pass over each
answer measures all shapes exactly. What a shape brings against plain decoding follows
from what a node adds to a verification and from what a level costs: `waits`, where the
verifier waits for the draft; `hidden`, where drafting costs no time.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from research.accepted_lengths import answers, asked_prompts
from research.command import measuring_parser, run, table
from research.thinned_draft import Text
from services.contract.types import ResolvedSampling, VerifyMode
from services.drafter.methods.graph.tree_shape import TreeShape, best_shape, most_probable
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.sampling import PartHead, RowContext, best, coupled_best
from services.engine.spec import ModelSpec
from services.engine.threads import pin

CANDIDATES = 8
Ranks = Sequence[int | None]
"""Per place of an answer which candidate is the target's own token, 0 for the first."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What each node, and each level, adds to a verification that takes 1 without them."""

    node: float
    level: float

    def verify(self, nodes: int) -> float:
        """One verification."""
        return 1.0 + self.node * nodes

    def speed(self, tokens: float, shape: TreeShape, *, waits: bool) -> float:
        """Against plain decoding."""
        return tokens / (self.verify(len(shape)) + waits * self.level * shape.depth)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Coverage, and what each shape brings."""
    *_, ranks = ranked(arguments)
    rates, costs = hit_rates(ranks), Costs(arguments.node_cost, arguments.level_cost)
    return {
        "places": sum(map(len, ranks)),
        "coverage": [sum(rates[: k + 1]) for k in range(CANDIDATES)],
        "shapes": [_row(name, shape, ranks, costs) for name, shape in shapes(rates, costs)],
    }


def ranked(
    arguments: argparse.Namespace,
) -> tuple[VerifyMode, NativeEngine, list[Text], list[Ranks]]:
    """How to verify, the draft model, the target's answers, and how the one ranks the other."""
    pin(arguments.threads)
    mode = VerifyMode[arguments.mode.upper()]
    target = NativeEngine.load(ModelSpec(arguments.model, arguments.dtype))
    prompts = asked_prompts(arguments.model, arguments.prompts)
    texts = answers(target, prompts, arguments.tokens, mode)
    draft = NativeEngine.load(ModelSpec(arguments.draft, arguments.dtype))
    ranks: list[Ranks] = [ranks_of(draft, text, mode, seed) for seed, text in enumerate(texts)]
    return mode, draft, texts, ranks


def ranks_of(draft: NativeEngine, text: Text, mode: VerifyMode, seed: int) -> list[int | None]:
    """Where the target's tokens stand among the candidates at each place of an answer."""
    ids: list[int] = text.token_ids[0].tolist()
    cache = draft.new_cache(len(ids))
    [logits] = draft.forward([Segment(cache, ids[:-1], logits_from=text.start - 1)])
    cache.free()
    head = None if draft.head_ids is None else PartHead(draft.head_ids)
    rows = [RowContext(mode, ResolvedSampling(), seed, place) for place in range(len(logits))]
    choose = best if mode is VerifyMode.GREEDY else coupled_best
    chosen = choose(logits, rows, CANDIDATES, head).tolist()
    return [
        found.index(token) if token in found else None
        for found, token in zip(chosen, ids[text.start :], strict=True)
    ]


def hit_rates(ranks: Sequence[Ranks]) -> tuple[float, ...]:
    """a_k: how often the k-th candidate is the target's own token."""
    flat = [rank for answer in ranks for rank in answer]
    return tuple(flat.count(rank) / len(flat) for rank in range(CANDIDATES))


def tokens_per_round(shape: TreeShape, ranks: Sequence[Ranks]) -> float:
    """Tokens of all answers over the verifications that they take."""
    edges = zip(shape.parents, shape.ranks, strict=True)
    child: dict[tuple[int, int | None], int] = {edge: node for node, edge in enumerate(edges)}
    rounds = 0
    for answer in ranks:
        place = 0
        while place < len(answer):
            node = -1
            # The last token of an answer needs no draft: it comes with the verification.
            while place < len(answer) - 1 and (node, answer[place]) in child:
                node = child[node, answer[place]]
                place += 1
            place += 1
            rounds += 1
    return sum(map(len, ranks)) / rounds


def comb(width: int, depth: int) -> TreeShape:
    """A chain with the next candidates beside each of its tokens."""
    trunk = [-1, *(width * level for level in range(depth - 1))]
    parents = tuple(above for above in trunk for _ in range(width))
    return TreeShape(parents, tuple(range(width)) * depth)


def shapes(rates: Sequence[float], costs: Costs) -> Iterator[tuple[str, TreeShape]]:
    """What is compared."""
    yield "plain decoding", TreeShape()
    for depth in (1, 2, 3, 4, 6):
        yield f"chain of {depth}", comb(1, depth)
    for width, depth in ((4, 2), (4, 3), (4, 4)):
        yield f"comb of {width} x {depth}", comb(width, depth)
    for nodes, depth in ((8, 2), (16, 2), (16, 4), (32, 4)):
        shape = most_probable(rates, nodes, depth)
        yield f"best {nodes} nodes, {shape.depth} levels", shape
    for name, level in (("pays most", costs.level), ("pays most, hidden", 0.0)):
        yield name, best_shape(rates, nodes=64, depth=8, verify=costs.verify, draft=level)


def _row(name: str, shape: TreeShape, ranks: Sequence[Ranks], costs: Costs) -> dict[str, Any]:
    tokens = tokens_per_round(shape, ranks)
    return {
        "shape": name,
        "nodes": len(shape),
        "levels": shape.depth,
        "tokens": tokens,
        "waits": costs.speed(tokens, shape, waits=True),
        "hidden": costs.speed(tokens, shape, waits=False),
    }


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    covered = ", ".join(f"{share:.3f}" for share in report["coverage"])
    columns = {"shape": "", "nodes": "", "levels": "", "tokens": ".3f"}
    columns |= {"waits": ".2f", "hidden": ".2f"}
    among = f"the target's token is among the first 1, 2, ... candidates: {covered}"
    return f"{among}\n\n{table(columns, report['shapes'])}"


def ranking_parser(
    description: str | None, **defaults: str | int | None
) -> argparse.ArgumentParser:
    """The command line of what `ranked` needs."""
    made = measuring_parser(description, dtype="float32", **defaults)
    made.add_argument("--mode", choices=("greedy", "coupled"), default="greedy")
    return made


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = ranking_parser(__doc__, draft=None, prompts=24, tokens=64)
    made.add_argument("--node-cost", type=float, default=0.02, help="share of a verification")
    made.add_argument("--level-cost", type=float, default=0.2, help="share of a verification")
    return made


if __name__ == "__main__":
    run(parser(), measure, show)
