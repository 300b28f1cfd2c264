"""What a verifier knows of one session, and which block may follow which.

    text       prompt + output; only grows
    cache      K/V of the text once the prefill is done, between any two steps
    retained   the logits after the text, where a block was accepted whole and no
               bonus drawn: the next block's first token costs no row of a forward
    The last token's K/V and `retained` are there together, or both are missing.
    A session that gives its K/V up keeps its text, and is prefilled again.
    One whose form is being compiled is prefilled meanwhile; its blocks wait.

A block is verified when it fits the text, answered `discarded` when it does
not, and answered from the store when its round was decided before. So every
Verify of a known session gets one verdict, however late or often it comes.

A chained block (extends_round) is verified only if the block it extends was
the last one decided, was a chain, and was accepted whole:
    no bonus was emitted            it follows as it is
    it starts behind the bonus      it follows as it is, whatever the bonus is
    the bonus is its first token    that token is committed: it starts one further
    any other bonus                 discarded
A block with an allowance follows the last one decided whatever that brought, with the draft
that is there when its turn comes; its epoch is that of a moment before, and says nothing.
Nothing follows a token that ends the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from torch import Tensor

from services.contract.types import OpenVerify, TakenDraft, Verdict, Verify
from services.engine.lending import Ahead
from services.engine.port import Segment
from services.engine.structure import Compiled, StructureError
from services.scheduling.turns import STEPS, Claim
from services.verifier.cutting import cut, shortened, without_first
from services.verifier.fed_text import FedText
from services.verifier.gathering import Habit
from services.verifier.types import Block, HeldTelling, Key, Task

KEPT_VERDICTS = 4
MOST_QUEUED = 64
"""Blocks of one session that wait; an orchestrator sends a handful."""


class VerifySession(FedText):
    """One session of one link. `opening` is the command that opened it."""

    key: Key
    opening: OpenVerify
    telling: HeldTelling | None

    def __init__(
        self,
        link: int,
        opening: OpenVerify,
        now: float,
        form: Compiled | None = None,
        number: int = 0,
    ) -> None:
        """Without a cache: see `Caches.open`. `number` grows from session to session.

        `form`: what its output is to be, where it has a form.
        """
        super().__init__((link, opening.session), opening, opening.committed, now, form, number)
        self.epoch = opening.epoch
        self.answered_at = 0.0
        """When its last verdict left; in seconds."""
        self.retained: Tensor | None = None
        self.queue: deque[Block] = deque()
        self.served = 0
        """When it was last its turn, among the turns of all sessions."""
        self.served_in = 0
        """In which of the engine's steps that was."""
        self.habit = Habit()
        self._verdicts: dict[int, Verdict] = {}
        self._highest_round = 0

    @property
    def lent_as(self) -> str:
        """The session's name, by which a drafter in this process knows it."""
        return self.key[1]

    @property
    def block_claim(self) -> Claim:
        """Its claim to a block in the next step."""
        return Claim(self.tenant, self.priority, self.served_in, STEPS)

    @property
    def output_len(self) -> int:
        """Tokens generated so far."""
        return len(self.text) - len(self.opening.prompt)

    @property
    def ready(self) -> bool:
        """Whether its next block can be verified."""
        return self.filled and self.form is None and bool(self.queue)

    def near(self, now: float) -> bool:
        """Whether it has something for a step, or its next block may come any moment."""
        return self.waits or self.habit.expected(now)

    @property
    def takes_block(self) -> bool:
        """Whether its next block, if that is a chain, fits in the step that ends its prefill."""
        idle = self.form is None and self.retained is None and not self.scoring
        return bool(self.queue) and idle

    def queued_ms(self, block: Block, started: float) -> float:
        """How long a block lay, ready to be verified, until a step started."""
        return 1e3 * max(0.0, started - max(block.arrived, self.filled_at, self.answered_at))

    def answered(self, now: float) -> None:
        """A step that it was in is over."""
        self.answered_at = now
        self.habit.answered(now)

    @property
    def fed_length(self) -> int:
        """All but the last token, unless the row behind that is retained."""
        return len(self.text) - (self.retained is None)

    def replaced_by(self, opening: OpenVerify) -> bool:
        """Whether an OpenVerify opens the session anew, or is an old or doubled one."""
        return opening.epoch > self.opening.epoch and opening.epoch >= self.epoch

    # --- blocks ---------------------------------------------------------------

    def knows(self, round_: int) -> bool:
        """Whether this round arrived before."""
        return round_ <= self._highest_round

    def is_queued(self, round_: int) -> bool:
        """Whether this round waits for its turn."""
        return any(block.command.round == round_ for block in self.queue)

    def verdict(self, round_: int) -> Verdict | None:
        """The stored outcome of a round."""
        return self._verdicts.get(round_)

    def enqueue(self, block: Block) -> None:
        """Take a new round in. A higher epoch makes blocks of lower ones stale."""
        self._highest_round = block.command.round
        self.epoch = max(self.epoch, block.command.epoch)
        self.queue.append(block)
        self.habit.came(block.arrived, block.rows)

    def with_draft(self, block: Block, taken: TakenDraft) -> Block:
        """A block with an allowance, with what it took behind the text as it is now.

        No more than leaves room for the token after it.
        """
        taken = shortened(taken, self.opening.sampling.max_tokens - self.output_len - 1)
        command = block.command._replace(tree=taken.tree, base_len=self.output_len)
        return Block(command, block.arrived, taken)

    def resolve(self, block: Block) -> Task | None:
        """What is left to verify of a block whose turn has come; None = discard it."""
        command = block.command
        skip = self._overlap(command)
        base_len = command.base_len + (skip or 0)
        if skip is None or (command.epoch < self.epoch and command.allowance is None):
            return None
        room = self.opening.sampling.max_tokens - base_len
        if room <= 0:
            return None
        drafted = without_first(command.tree) if skip else command.tree.normal()
        tree, nodes = cut(drafted, room)
        return Task(block, base_len, tree, tuple(node + skip for node in nodes))

    def _overlap(self, command: Verify) -> int | None:
        """Draft tokens at the front that are committed already; None = it does not fit."""
        if command.extends_round == 0:
            return 0 if command.base_len == self.output_len else None
        earlier = self._last_verdict()
        if earlier is None or earlier.round != command.extends_round:
            return None
        if command.allowance is not None:
            return None if self._ended else 0
        if earlier.accepted_nodes:
            return None
        if not earlier.all_accepted or self._ended:
            return None
        if command.base_len == self.output_len:
            return 0
        if command.base_len != earlier.base_len + earlier.accepted:
            return None
        first = command.tree.token_ids[:1] if command.tree.is_chain else ()
        return 1 if first == (self.text[-1],) else None

    @property
    def _ended(self) -> bool:
        """Whether the last token ends the text."""
        return self.output_len > 0 and self.text[-1] in self.opening.sampling.stop_token_ids

    def _last_verdict(self) -> Verdict | None:
        return self._verdicts[max(self._verdicts)] if self._verdicts else None

    # --- the outcome ------------------------------------------------------------

    def segment(self, task: Task) -> Segment | None:
        """What the forward is fed; None when the retained row is all that is needed."""
        tokens, parents = task.tree.token_ids, task.tree.parents
        if self.retained is not None:
            return Segment(self.cache, tokens, parents) if tokens else None
        rows = None if parents is None else (-1, *(parent + 1 for parent in parents))
        return Segment(self.cache, (self.text[-1], *tokens, *self.look_ahead(task)), rows)

    def look_ahead(self, task: Task) -> Sequence[int]:
        """Look-ahead rows behind a block: for a chain that a token of the target's follows."""
        if self.offer is None or self.retained is not None:
            return ()
        if task.tree.parents is not None or not task.always_emits:
            return ()
        left = self.opening.sampling.max_tokens - task.base_len - len(task.tree) - 1
        return self.offer.look_ahead[: max(0, left)]

    def keep_path(self, task: Task, path: Sequence[int]) -> None:
        """Of a tree's rows in the cache keep those of the accepted nodes; a chain stays."""
        if task.tree.parents is not None:
            root = () if self.retained is not None else (0,)
            rows = (*root, *(node + len(root) for node in path))
            self.cache.keep_path(len(self.text) - len(root), rows)

    def commit(
        self,
        task: Task,
        path: Sequence[int],
        final: int | None,
        leaf: Tensor | None,
        state: Tensor | None = None,
    ) -> None:
        """Append the accepted nodes of `path` and the token after them.

        `final` None = none is emitted: the `leaf` logits [V], those after the path,
        are retained instead, and the `state` there. The cache holds the block's rows, of a tree
        the path's.
        """
        emitted = [task.tree.token_ids[node] for node in path]
        emitted += [] if final is None else [final]
        self.text += emitted
        self.retained = leaf if final is None else None
        if self.telling is not None:
            self.telling.told = len(self.text) - (final is not None)
            self.telling.held = state
        self.cache.rollback(len(self.text) - (final is not None))
        if self.history is not None:
            self.history.extend(emitted)
        if self.matcher is not None and not self.matcher.extend(emitted):
            raise StructureError("a token was accepted that the form does not allow")

    def lend(self, ahead: Tensor | None) -> None:
        """Leave the logits [L, V] of look-ahead rows behind the text to whoever borrows."""
        if self.offer is not None:
            self.offer.ahead = None if ahead is None else Ahead(len(self.text), ahead)

    def store(self, verdict: Verdict) -> None:
        """Keep a verdict for duplicates of its round; the oldest ones are forgotten."""
        self._verdicts[verdict.round] = verdict
        while len(self._verdicts) > KEPT_VERDICTS:
            del self._verdicts[min(self._verdicts)]
