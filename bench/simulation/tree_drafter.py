"""A drafter of the default trees in simulated time: the served core and method, on real texts.

Whatever it drafts comes from `services.drafter` itself: the core with its bookkeeping, the
method `ngram`, the sources with their weights. Only a step's time is given. A draft model that
works during verification (`services.drafter.methods.model.ahead`) is left out: what it knows
depends on the times of real forwards, so it would need the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.simulation.agenda import Agenda
from bench.simulation.ports import Deliver
from bench.simulation.recorded import RecordedText
from bench.simulation.stepping import SteppingDrafter
from orchestrator.core.events import DraftArrived, WorkerOpened
from orchestrator.core.pacing import DEFAULT_POLICY, Policy, make_policy
from orchestrator.core.state import SMALL_TREE, SMALL_TREE_DEPTH
from services.contract.types import Draft, DrafterCommand, DrafterEvent, DraftOpened, Role
from services.drafter.core import DrafterCore
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.ngram.small_tree import MOST_NODES, SmallTrees
from services.engine.ngram_file import NgramFile

METHOD = "ngram"
LINK = 0


@dataclass(frozen=True, slots=True)
class TreeDrafts:
    """Sessions that answer `texts` in turn, drafted by the default trees.

    `file`: the n-gram file of the drafter, None = this text alone is a source. `build_ms`: a
    tree. `depth`, `nodes`: most levels and nodes of a tree.
    """

    texts: tuple[RecordedText, ...]
    file: NgramFile | None = None
    build_ms: float = 0.3
    depth: int = SMALL_TREE_DEPTH
    nodes: int = MOST_NODES

    def text(self, session: str) -> RecordedText:
        """What a session, whose name is its number, is about."""
        return self.texts[int(session) % len(self.texts)]

    def policy(self, *, rests: bool) -> Policy:
        """How such sessions are paced by default."""
        return make_policy(
            DEFAULT_POLICY, self.depth, fallback=rests, trees=True, most_nodes=SMALL_TREE
        )

    def trees(self) -> SmallTrees:
        """What makes the trees."""
        return SmallTrees(self.file, nodes=self.nodes)


class TreeDrafter(SteppingDrafter):
    """A tree of `drafts` takes its time; what the core says during a step leaves at its end."""

    def __init__(self, name: str, agenda: Agenda, drafts: TreeDrafts, deliver: Deliver) -> None:
        super().__init__(name, agenda, deliver)
        self._build_ms = drafts.build_ms
        method = NgramDrafter(small=drafts.trees())
        self._core = DrafterCore({METHOD: method}, emit=self._hear, worker_id=name)
        self._said: list[DrafterEvent] = []

    def _absorb(self, command: DrafterCommand) -> None:
        self._core.handle(LINK, command)
        self._conclude()

    def _begin(self) -> float | None:
        """Draft now."""
        if not self._core.step():
            return None
        return self._build_ms * max(1, sum(isinstance(one, Draft) for one in self._said))

    def _hear(self, _link: int, event: DrafterEvent) -> None:
        self._said.append(event)

    def _conclude(self) -> None:
        said, self._said = self._said, []
        for event in said:
            match event:
                case DraftOpened(session, epoch):
                    self._deliver(session, WorkerOpened, Role.DRAFTER, self.name, epoch)
                case Draft():
                    self.drafted += len(event.tree)
                    draft = event._replace(draft_ms=self._build_ms)
                    self._deliver(event.session, DraftArrived, self.name, draft)
                case _:
                    raise AssertionError(f"the drafter: {event}")
