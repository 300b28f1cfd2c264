"""Drafting graphs over a draft model: GSD (Gong et al., 2407.16207).

Several continuations are drafted at once and share what they repeat. Each step runs the
draft model over the nodes to expand of all sessions in one packed forward. What was
drafted already behind other words is not drafted again, only linked (`draft_graph`). The
graph leaves as a tree, verified by exact match: the text is the target's own whatever was
pruned, merged or guessed. So it serves GREEDY and COUPLED alone; candidates that are
chosen, not drawn, have no law that rejection sampling could use.

COUPLED: the candidates of a node are the first finishers of the race with the noise
that the target has at that position. Behind a merged edge to another depth they would be
those of another position, so only nodes of the same depth are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from services.contract.types import OpenDraft, VerifyMode
from services.drafter.methods.graph.draft_graph import GraphRules
from services.drafter.methods.graph.graph_state import NODES_IN_KV, GraphSession
from services.drafter.methods.graph.tree_growth import GrowthPlan, default_growth
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.protocol import SessionKey
from services.engine.port import Engine, freed_on_error


class GraphDrafter(ModelDrafter):
    """One step of each session's graph at a time, all sessions in one forward.

    `num_candidates` of a session is how many candidates a node has at most; with 1 a
    graph is a chain.
    """

    modes = frozenset({VerifyMode.GREEDY, VerifyMode.COUPLED})
    samples = False

    def __init__(
        self,
        engine: Engine,
        rules: GraphRules | None = None,
        *,
        plan: Callable[[], GrowthPlan] = default_growth,
        step_tokens: int = 512,
    ) -> None:
        """`plan`: makes what decides how far graphs grow, one for each mode."""
        super().__init__(engine, step_tokens=step_tokens, trees=plan)
        self._rules = rules or GraphRules()

    def _session(
        self,
        key: SessionKey,
        opening: OpenDraft,
        reserve: int,
        vocab_size: int,
    ) -> GraphSession:
        """KV holds the graph beside the text."""
        mode = opening.mode
        rules = replace(self._rules, same_depth=mode is VerifyMode.COUPLED)
        longest = self._engine.max_context_length
        plan = self._growth(opening) or default_growth()
        with freed_on_error(self._own_cache(key, opening, reserve + NODES_IN_KV)) as cache:
            return GraphSession(opening, cache, vocab_size, longest, rules, plan)
