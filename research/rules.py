"""What choosing and verifying cost, beside the target's forward.

    python -m research.rules                     the demo model in bfloat16, one thread

A block of draft tokens at temperature 1, every row with the demo model's logits on
a real prompt. Times are CPU time, the least of some steps; every repeat runs the
forward and all rules in turn, so that a busy machine slows them alike; shares are
medians over repeats, with their least and greatest value. Drafts of the exact rules
are accepted whole: the dearest case.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from research.accepted_lengths import answers, asked_prompts
from research.command import measuring_parser, ratios, run, table
from research.engine_steps import Stepper, timed
from services.contract.types import (
    DraftTree,
    OpenVerify,
    Proposal,
    ResolvedSampling,
    SparseRow,
    Verify,
    VerifyMode,
)
from services.engine.native import NativeEngine
from services.engine.native.kv import PagedBudget, PagedCache
from services.engine.port import Segment
from services.engine.sampling import choose, top_law
from services.engine.spec import ModelSpec
from services.engine.threads import pin
from services.verifier.judging import Judged, decide, row_contexts
from services.verifier.session import Block, Task, VerifySession

SUPPORT = 64
DRAFT_NOISE = 0.8
"""Standard deviation of what is added to the target's logits to get a draft's: the distributions
then overlap by about 0.7 on the demo model."""

_PLAIN = ResolvedSampling(temperature=1.0)
_CUTS = {
    "": _PLAIN,
    ", top_p 0.9": replace(_PLAIN, top_p=0.9),
    ", top_k 50": replace(_PLAIN, top_k=50),
    ", min_p 0.05": replace(_PLAIN, min_p=0.05),
    ", penalties": replace(_PLAIN, frequency_penalty=0.5, repetition_penalty=1.1),
}
_SEED = 1


@dataclass(frozen=True, slots=True)
class Scene:
    """The rows [1 + n, V] float32 of a block of n tokens after `prompt`; `parents` of a tree."""

    logits: Tensor
    prompt: tuple[int, ...]
    parents: tuple[int, ...] | None = None

    @property
    def above(self) -> tuple[int, ...]:
        """The parent of every draft token."""
        return self.parents or tuple(range(-1, len(self.logits) - 2))

    def block(self, mode: VerifyMode, sampling: ResolvedSampling, tree: DraftTree) -> Judged:
        """`tree` as the verifier has it after the forward."""
        opening = OpenVerify("s", 1, 1, self.prompt, (), mode, sampling, _SEED, len(tree))
        session = VerifySession(1, opening, 0.0)
        session.cache = PagedCache(PagedBudget(1), 1)
        command = Verify("s", epoch=1, round=1, base_len=0, tree=tree)
        task = Task(Block(command, 0.0), 0, tree, tuple(range(len(tree))))
        return Judged(session, task, self.logits[: len(tree) + 1])


def stepper(scene: Scene, mode: VerifyMode, sampling: ResolvedSampling) -> Stepper:
    """One verdict under a rule: everything between the forward and the commit."""
    make = own_tree if mode.exact_match else sampled_tree
    return partial(decide, [scene.block(mode, sampling, make(scene, mode, sampling))])


def own_tree(scene: Scene, mode: VerifyMode, sampling: ResolvedSampling) -> DraftTree:
    """A draft of the target's own choices: all of it, down to a leaf, is accepted."""
    tree = DraftTree((), scene.parents and ())
    for parent in scene.above:
        row = parent + 1
        block = scene.block(mode, sampling, tree)
        own = choose(scene.logits[[row]], [row_contexts(block.session, block.task)[row]])
        parents = scene.parents and scene.parents[: len(tree) + 1]
        tree = DraftTree((*tree.token_ids, *own), parents)
    return tree


def sampled_tree(scene: Scene, mode: VerifyMode, sampling: ResolvedSampling) -> DraftTree:
    """A draft drawn from a perturbed target, cut to its likeliest tokens."""
    random = torch.Generator().manual_seed(_SEED)
    noise = DRAFT_NOISE * torch.randn(scene.logits.shape, generator=random)
    shape = DraftTree(scene.prompt[: len(scene.above)], scene.parents)
    block = scene.block(mode, sampling, shape)
    ids, q = top_law(scene.logits + noise, row_contexts(block.session, block.task), SUPPORT)
    slots = torch.multinomial(q, len(shape), generator=random, replacement=True)
    drawn = [int(ids[up + 1, slots[up + 1, node]]) for node, up in enumerate(scene.above)]
    laws = [_sparse(ids[row], q[row]) for row in sorted({up + 1 for up in scene.above})]
    return DraftTree(tuple(drawn), scene.parents, tuple(laws), Proposal.SAMPLED)


def _sparse(ids: Tensor, q: Tensor) -> SparseRow:
    return SparseRow(tuple(ids[q > 0].tolist()), tuple(q[q > 0].tolist()))


def forward_stepper(
    engine: NativeEngine, prompt: Sequence[int], block: Sequence[int]
) -> Callable[[], list[Tensor]]:
    """The forward of a block after a prompt that is in the cache."""
    cache = engine.new_cache(len(prompt) + len(block))
    engine.forward([Segment(cache, prompt, logits_from=len(prompt))])

    def step() -> list[Tensor]:
        logits = engine.forward([Segment(cache, block)])
        cache.rollback(len(prompt))
        return logits

    return step


def steppers(scene: Scene, tree: Scene) -> dict[str, Stepper]:
    """Every rule on a chain; coupled and recursive rejection on a tree."""
    made = {"greedy": stepper(scene, VerifyMode.GREEDY, _PLAIN)}
    for mode in (VerifyMode.COUPLED, VerifyMode.STANDARD, VerifyMode.BLOCK):
        for cut, sampling in _CUTS.items():
            made[f"{mode.name.lower()}{cut}"] = stepper(scene, mode, sampling)
    for mode in (VerifyMode.COUPLED, VerifyMode.STANDARD):
        for cut in ("", ", top_p 0.9"):
            made[f"{mode.name.lower()} tree{cut}"] = stepper(tree, mode, _CUTS[cut])
    return made


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times (ms) and shares of the forward of one run."""
    pin(arguments.threads)
    engine = NativeEngine.load(ModelSpec(arguments.model, arguments.dtype))
    prompts = asked_prompts(arguments.model, 1)
    [text] = answers(engine, prompts, arguments.block + 1)
    forward = forward_stepper(engine, prompts[0], text.token_ids[0, text.start :].tolist())
    [logits] = forward()
    chain = Scene(logits, tuple(prompts[0]))
    made = steppers(chain, replace(chain, parents=_parents(arguments.block)))
    times = timed({"forward": forward} | made, arguments, time.process_time)
    return {
        "ms": {name: median(own) for name, own in times.items()},
        "least_ms": {name: min(own) for name, own in times.items()},
        "shares": {name: ratios(own, times["forward"]) for name, own in times.items()},
    }


def _parents(nodes: int) -> tuple[int, ...]:
    """Three candidates at each place along the first one's path."""
    return tuple(node - node % 3 - 3 if node >= 3 else -1 for node in range(nodes))


def show(report: dict[str, Any]) -> str:
    """The report as a table: CPU time, and the share of the forward with its least and greatest."""
    rows = [
        {"rule": name, "ms": ms, "least ms": report["least_ms"][name]} | report["shares"][name]
        for name, ms in report["ms"].items()
    ]
    shares = dict.fromkeys(("median", "min", "max"), ".1%")
    return table({"rule": "", "ms": ".2f", "least ms": ".2f"} | shares, rows)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__, dtype="bfloat16", repeats=15)
    made.add_argument("--block", type=int, default=8, help="draft tokens")
    made.add_argument("--steps", type=int, default=5, help="steps per turn")
    return made


if __name__ == "__main__":
    run(parser(), measure, show)
