"""What a verifier knows of one session, and which block may follow which.

    text    prompt + output; only grows
    cache   K/V of text[:-1] once the prefill is done, between any two steps

A block is verified when it fits the text, answered `discarded` when it does
not, and answered from the store when its round was decided before. So every
Verify of a known session gets one verdict, however late or often it comes.

A chained block (extends_round) is verified only if the block it extends was
the last one decided, was a chain, and was accepted whole:
    no bonus was emitted            it follows as it is
    the bonus is its first token    that token is committed: it starts one further
    any other bonus                 discarded
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from services.common.engine import KVCache
from services.common.types import DraftTree, OpenVerify, Verdict, Verify
from services.verifier.rules import Walk, depths

KEPT_VERDICTS = 4

Key = tuple[int, str]
"""(link number, session id)."""


@dataclass(frozen=True, slots=True)
class Block:
    """A Verify command and when it arrived, in seconds of the worker's clock."""

    command: Verify
    arrived: float


@dataclass(frozen=True, slots=True)
class Task:
    """A block that fits: `tree` is what is left to verify after output[:base_len].

    `nodes` maps the tree's indices to those of the command's tree.
    """

    block: Block
    base_len: int
    tree: DraftTree
    nodes: tuple[int, ...]

    @property
    def always_emits(self) -> bool:
        """Whether a token is emitted even after full acceptance."""
        return self.block.command.want_bonus or len(self.tree) == 0


class VerifySession:
    """One session of one link. `opening` is the command that opened it."""

    def __init__(self, link: int, opening: OpenVerify, cache: KVCache, now: float) -> None:
        self.key: Key = (link, opening.session)
        self.opening = opening
        self.cache = cache
        self.since = now
        self.epoch = opening.epoch
        self.opened = False
        self.text = [*opening.prompt, *opening.committed]
        self.queue: deque[Block] = deque()
        self._verdicts: dict[int, Verdict] = {}
        self._highest_round = 0

    @property
    def output_len(self) -> int:
        """Tokens generated so far."""
        return len(self.text) - len(self.opening.prompt)

    @property
    def prefill_left(self) -> int:
        """Tokens to feed before the first block can be verified; 0 from then on."""
        return 0 if self.opened else len(self.text) - 1 - self.cache.length

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

    def resolve(self, block: Block) -> Task | None:
        """What is left to verify of a block whose turn has come; None = discard it."""
        command = block.command
        skip = self._overlap(command)
        base_len = command.base_len + (skip or 0)
        if skip is None or command.epoch < self.epoch:
            return None
        room = self.opening.sampling.max_tokens - base_len
        return _cut(Task(block, base_len, _without_first(command.tree, skip), ()), room, skip)

    def _overlap(self, command: Verify) -> int | None:
        """Draft tokens at the front that are committed already; None = it does not fit."""
        if command.extends_round == 0:
            return 0 if command.base_len == self.output_len else None
        earlier = self._last_verdict()
        if earlier is None or earlier.round != command.extends_round or earlier.accepted_nodes:
            return None
        if not earlier.all_accepted or command.base_len != earlier.base_len + earlier.accepted:
            return None
        if command.base_len == self.output_len:
            return 0
        first = command.tree.token_ids[:1] if command.tree.is_chain else ()
        return 1 if first == (self.text[-1],) else None

    def _last_verdict(self) -> Verdict | None:
        return self._verdicts[max(self._verdicts)] if self._verdicts else None

    # --- the outcome ------------------------------------------------------------

    def segment_tokens(self, task: Task) -> list[int]:
        """What the forward is fed: the token whose K/V is missing, then the draft."""
        return [self.text[-1], *task.tree.token_ids]

    def commit(self, task: Task, walked: Walk) -> tuple[int, ...]:
        """Append what a walk emits, and keep the K/V of all text but the last token.

        The cache holds the block's rows from `len(text) - 1` on.
        """
        emitted = tuple(task.tree.token_ids[node] for node in walked.path)
        if task.always_emits or not walked.all_accepted:
            emitted += (walked.final_token,)
        if task.tree.parents is not None:
            rows = (0, *(node + 1 for node in walked.path))
            self.cache.keep_path(len(self.text) - 1, rows)
        self.text += emitted
        self.cache.rollback(len(self.text) - 1)
        return emitted

    def store(self, verdict: Verdict) -> None:
        """Keep a verdict for duplicates of its round; the oldest ones are forgotten."""
        self._verdicts[verdict.round] = verdict
        while len(self._verdicts) > KEPT_VERDICTS:
            del self._verdicts[min(self._verdicts)]


def _without_first(tree: DraftTree, skip: int) -> DraftTree:
    if tree.is_chain:
        return DraftTree(tree.token_ids[skip:])
    return tree


def _cut(task: Task, room: int, skip: int) -> Task | None:
    """Drop draft tokens past max_tokens, where no token is emitted; None without room."""
    if room <= 0:
        return None
    levels = depths(task.tree)[1:]
    kept = [node for node, depth in enumerate(levels) if depth <= room]
    tokens = tuple(task.tree.token_ids[node] for node in kept)
    parents = task.tree.parents
    if parents is not None:
        index = {-1: -1} | {node: new for new, node in enumerate(kept)}
        parents = tuple(index[parents[node]] for node in kept)
    nodes = tuple(node + skip for node in kept)
    return replace(task, tree=DraftTree(tokens, parents), nodes=nodes)
