"""The rejection rules over a ragged batch of blocks: chains and trees, both modes.

Read q → run each rule over its blocks → go on by exact match where q cannot be
used → the law of the next token. Decisions need the target's law only at q's
tokens, which come to the CPU at once; a whole row of the vocabulary is read for
the law of the last token alone.

A row of q that is missing or no law ends the block there: the tokens before it
are judged as a shorter block, and from that row on the target's own sample
decides. To downgrade the whole block would be a choice by its content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from services.contract.types import VerifyMode
from services.engine.noise import Stream
from services.engine.sampling import NO_CHOICE, draw
from services.verifier.rules.chains import judge_chains
from services.verifier.rules.exact import walk_rows
from services.verifier.rules.proposed import Outcome, Proposed, Stop
from services.verifier.rules.residual import own_sample_law, residual_law, target_law
from services.verifier.rules.rows import Case, Laws, gather_laws, read_blocks
from services.verifier.rules.trees import judge_trees


def judge(blocks: Sequence[Proposed]) -> list[Outcome]:
    """Which draft tokens of each block stay, and the law of the token after them."""
    cases = read_blocks(blocks)
    stops = [Stop()] * len(cases)
    for case, stop in _by_rejection(cases, gather_laws(cases)):
        stops[case.number] = stop
    unjudged = [case for case in cases if _is_open(case, stops[case.number])]
    for case, stop in _by_own_sample(unjudged, [stops[case.number] for case in unjudged]):
        stops[case.number] = stop
    return [_outcome(case, stop) for case, stop in zip(cases, stops, strict=True)]


def _by_rejection(cases: Sequence[Case], laws: Laws) -> Iterable[tuple[Case, Stop]]:
    """Each rule over its own blocks, as far as their rows of q can be used."""
    chains = [case for case in cases if case.block.tree.is_chain and case.draft.usable_prefix]
    for mode in (VerifyMode.STANDARD, VerifyMode.BLOCK):
        group = [case for case in chains if case.block.mode is mode]
        yield from zip(group, judge_chains(group, laws, mode), strict=True)
    trees = [case for case in cases if not case.block.tree.is_chain]
    yield from zip(trees, judge_trees(trees, laws), strict=True)


def _is_open(case: Case, stop: Stop) -> bool:
    """Whether a walk stands, not rejected, above draft tokens that are still unjudged."""
    return stop.kept is None and stop.row in case.draft.children


def _by_own_sample(cases: Sequence[Case], stops: Sequence[Stop]) -> Iterable[tuple[Case, Stop]]:
    """Exact match from where each walk stands; a leaf's own token is left to be drawn."""

    def choose(places: Sequence[tuple[int, int]]) -> list[int]:
        chosen = dict.fromkeys(places, NO_CHOICE)
        inner = [place for place in places if place[1] in cases[place[0]].draft.children]
        if inner:
            laws = torch.stack([cases[i].block.log_p[row] for i, row in inner]).exp()
            u = [cases[i].block.uniform(Stream.BONUS, row, 0) for i, row in inner]
            chosen.update(zip(inner, draw(laws, u), strict=True))
        return list(chosen.values())

    walks = walk_rows([case.block.tree for case in cases], choose, [stop.row for stop in stops])
    for case, stop, walk in zip(cases, stops, walks, strict=True):
        path = stop.path + walk.path
        row = path[-1] + 1 if path else 0
        yield case, Stop(path, row, token=None if walk.all_accepted else walk.final_token)


def _outcome(case: Case, stop: Stop) -> Outcome:
    log_p, bad = case.block.log_p[stop.row], case.draft.bad
    if stop.kept is not None:
        ids = case.draft.usable[stop.row].law.token_ids
        law = residual_law(log_p, ids, stop.kept[: len(ids)])
        return Outcome(stop.path, False, law, (Stream.RESIDUAL, stop.row), bad)
    if stop.token is not None:
        law = own_sample_law(log_p, stop.token)
        return Outcome(stop.path, False, law, (Stream.RESIDUAL, stop.row), bad)
    return Outcome(stop.path, True, target_law(log_p), (Stream.BONUS, stop.row), bad)
