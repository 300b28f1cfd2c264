"""Small worlds with laws that depend on the whole context, and all the drafts made in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from services.contract.types import DraftTree, Proposal, SparseRow

Text = tuple[int, ...]
Law = np.ndarray


class World:
    """A target and a draft law for every context, drawn at random once.

    `holes`: half of the laws give one token no mass, as top_k and top_p do.
    """

    def __init__(self, seed: int, vocab: int = 3, *, holes: bool = False) -> None:
        self.vocab = vocab
        self.target = cache(lambda text: self._law([seed, 0, *text], holes))
        self.draft = cache(lambda text: self._law([seed, 1, *text], holes))
        self.log_p = cache(lambda text: torch.from_numpy(self.target(text)).log())

    def written(self, law: Law) -> Law:
        """The law of what is written where the target has this one."""
        return law

    def _law(self, seed: Sequence[int], holes: bool) -> Law:
        rng = np.random.default_rng([len(seed), *seed])
        law = rng.dirichlet([0.9] * self.vocab)
        if holes and rng.random() < 0.5:
            law[rng.integers(self.vocab)] = 0.0
        return law / law.sum()


class DyingWorld(World):
    """A world whose target has no law behind some texts, where its text ends with `END`.

    No law gives that token; drafts go on behind such texts.
    """

    END = 3

    def __init__(self, seed: int, dead: Callable[[Text], bool]) -> None:
        super().__init__(seed, vocab=4)
        alive = self.target
        self.target = cache(lambda text: np.full(4, np.nan) if dead(text) else alive(text))

    def _law(self, seed: Sequence[int], holes: bool) -> Law:
        rng = np.random.default_rng([len(seed), *seed])
        return np.array([*rng.dirichlet([0.9] * self.END), 0.0])

    def written(self, law: Law) -> Law:
        """The law of what is written: the end where there is none."""
        return np.eye(4)[self.END] if np.isnan(law).any() else law


def sparse(law: Law) -> SparseRow:
    """A law as it is sent: the tokens that have mass."""
    ids = np.flatnonzero(law)
    return SparseRow(tuple(ids.tolist()), tuple(law[ids].tolist()))


@dataclass(frozen=True)
class Drafter:
    """How drafts are made. Tokens are drawn from `law`, and `row` is sent of it.

    A chain may end behind a token (`ends_after`) or, unlawfully, before one that was
    drawn (`holds_back`); both see the text up to that token. `picks` is what becomes of
    a law before the draw, `sent` of a draft before it is verified.
    """

    law: Callable[[Text], Law]
    row: Callable[[Text], SparseRow]
    proposal: Proposal = Proposal.SAMPLED
    without_replacement: bool = False
    ends_after: Callable[[Text], bool] = lambda text: False
    holds_back: Callable[[Text], bool] = lambda text: False
    picks: Callable[[Law], Law] = lambda law: law
    sent: Callable[[DraftTree], DraftTree] = lambda tree: tree

    @classmethod
    def honest(cls, world: World, **changes: Any) -> Drafter:
        """Sends exactly what it draws from."""
        return replace(cls(world.draft, lambda text: sparse(world.draft(text))), **changes)


@dataclass(frozen=True)
class Draft:
    """A draft and the probability that it is made."""

    weight: float
    tree: DraftTree


def chain(length: int) -> Text:
    """The parents of a chain."""
    return tuple(range(-1, length - 1))


def texts(tree: DraftTree, start: Text) -> list[Text]:
    """The context of every row of a block, root first."""
    found = [start]
    for node, parent in enumerate(tree.parents or chain(len(tree))):
        found.append((*found[parent + 1], tree.token_ids[node]))
    return found


def drafts(drafter: Drafter, start: Text, parents: Text) -> Iterator[Draft]:
    """All drafts of one shape after a text; shorter where no token is left to draw."""

    def grow(tree: DraftTree, weight: float) -> Iterator[Draft]:
        node, at = len(tree), texts(tree, start)
        if node == len(parents) or (node and drafter.ends_after(at[-1])):
            yield Draft(weight, _finished(drafter, tree, at))
            return
        text = at[parents[node] + 1]
        law = _turn(drafter, drafter.law(text), tree, parents[node])
        for token in np.flatnonzero(law).tolist():
            if drafter.holds_back((*text, token)):
                yield Draft(weight * law[token], _finished(drafter, tree, at))
            else:
                grown = DraftTree((*tree.token_ids, token), parents[: node + 1])
                yield from grow(grown, weight * law[token])
        if not law.any():
            yield Draft(weight, _finished(drafter, tree, at))

    yield from grow(DraftTree(), 1.0)


def _turn(drafter: Drafter, law: Law, tree: DraftTree, parent: int) -> Law:
    """The law of the next child: without replacement its elder siblings are taken out."""
    if drafter.without_replacement:
        elder = zip(tree.parents or (), tree.token_ids, strict=True)
        law = law.copy()
        law[[token for own, token in elder if own == parent]] = 0.0
    return drafter.picks(law / law.sum()) if law.any() else law


def _finished(drafter: Drafter, tree: DraftTree, at: Sequence[Text]) -> DraftTree:
    inner = sorted({parent + 1 for parent in tree.parents or ()})
    soft = drafter.proposal is Proposal.SAMPLED
    done = replace(
        tree,
        parents=None if tree.is_chain else tree.parents,
        q=tuple(drafter.row(at[row]) for row in inner) if soft else None,
        proposal=drafter.proposal,
        without_replacement=drafter.without_replacement,
    )
    return drafter.sent(done)
