"""Idle moments of a model drafter: what its sessions' branches want goes into one forward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import chain, islice

from torch import Tensor

from services.contract.types import OpenDraft
from services.drafter.comb import Level
from services.drafter.methods.model.branches import Branches, PrepareFigures, PrepareRules
from services.drafter.methods.model.candidates import Place
from services.drafter.methods.model.model_state import ModelSession
from services.drafter.methods.model.stepping import Feed
from services.drafter.protocol import Ask
from services.engine.port import Engine, KVCache, Segment

_log = logging.getLogger(__name__)

Waiting = tuple[Ask, ModelSession, Branches]
"""A session whose draft has reached its window, and what is prepared for it."""


class Preparing:
    """Prepares for what verdicts may bring, all sessions together; see `branches`."""

    def __init__(
        self,
        engine: Engine,
        rules: PrepareRules,
        levels: Callable[[Sequence[Tensor], Sequence[Place]], list[Level]],
    ) -> None:
        """`levels`: the candidates at each row of logits."""
        self._engine, self._rules, self._levels = engine, rules, levels
        self.figures = PrepareFigures()

    def branches(self, opening: OpenDraft, cache: KVCache) -> Branches | None:
        """Those of a session whose drafts are chains, matched exactly; None for any other."""
        if opening.num_candidates > 1 or opening.synchronous or not opening.mode.exact_match:
            return None
        longest = self._engine.max_context_length
        end = min(len(opening.prompt) + opening.sampling.max_tokens, longest + 1)
        stops = opening.sampling.stop_token_ids
        return Branches(cache, self._rules, self.figures, end=end, stops=stops)

    def step(self, waiting: Sequence[Waiting]) -> bool:
        """One forward; False = there is nothing to prepare. Raises nothing."""
        try:
            return self._step(waiting)
        except Exception:
            _log.exception("preparing failed; these sessions go on without")
            for ask, session, _ in waiting:
                # One that cannot even do that fails, alone, when it drafts next.
                with suppress(Exception):
                    session.give_up_branches(ask)
            return False

    def _step(self, waiting: Sequence[Waiting]) -> bool:
        feeds = [(one, one[2].feed(nodes)) for one, nodes in self._likeliest(waiting)]
        if not feeds:
            return False
        rows = self._engine.forward([_segment(one, feed) for one, feed in feeds])
        places = chain.from_iterable(session.branch_places(ask) for (ask, session, _), _ in feeds)
        levels = iter(self._levels(rows, list(places)))
        for (_, _, branches), feed in feeds:
            branches.absorb(list(islice(levels, feed.rows)))
        self.figures.steps += 1
        return True

    def _likeliest(self, waiting: Sequence[Waiting]) -> list[tuple[Waiting, list[int]]]:
        """Which nodes to feed, of whichever sessions."""
        wanted = [
            (*found, owner)
            for owner, (ask, _, branches) in enumerate(waiting)
            for found in branches.wanted(ask)
        ]
        chosen: dict[int, list[int]] = {}
        for _, node, owner in nlargest(self._rules.rows, wanted):
            chosen.setdefault(owner, []).append(node)
        return [(waiting[owner], nodes) for owner, nodes in chosen.items()]


def _segment(one: Waiting, feed: Feed) -> Segment:
    return Segment(one[1].cache, feed.token_ids, feed.parents, 0, feed.base)
