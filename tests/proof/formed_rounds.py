"""Rounds of speculation on outputs of a form, through the verifier's own sessions.

What is left out: the wire, the forward and the last draw. Every draft, every side of each
uniform and every token after it is counted, until the output ends.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from services.contract.types import DraftTree, OpenVerify, Verify, VerifyMode
from services.engine.budgeted import KVBudget, place
from services.verifier import judging
from services.verifier.batch import Decision, Judged, judged
from services.verifier.refusals import open_matcher
from services.verifier.rules import Outcome, Proposed, judge
from services.verifier.session import VerifySession
from services.verifier.types import Block, Task
from services.verifier.verdicts import decided, emitted
from tests.fake_engine import TokenCache
from tests.proof.formed import PROMPT, FormedWorld
from tests.rules.enumeration import WHOLE, Case, branches
from tests.rules.worlds import Drafter, Text, drafts, texts


def opened(world: FormedWorld, mode: VerifyMode, output: Text = (), seed: int = 0) -> VerifySession:
    """A session as the verifier opens it behind what is committed."""
    opening = OpenVerify("s", 1, 1, PROMPT, output, mode, world.sampling, seed, window=8)
    structures, wanted = world.language.structures, world.sampling.response_format
    session = VerifySession(0, opening, 0.0)
    if wanted is not None:
        session.matcher = open_matcher(opening, structures.compiled(wanted), structures)
        while not session.follow_text(1.0):
            pass
    tokens = TokenCache(KVBudget(session.most_tokens), session.most_tokens)
    tokens.say(session.text[:-1])
    session.cache = tokens
    session.opened = session.filled = True
    return session


def cloned(session: VerifySession) -> VerifySession:
    """The same once more: from here on the two live apart."""
    known = session.matcher._matcher
    memo = {id(known): known.deep_copy(), id(session.opening): session.opening}
    return copy.deepcopy(session, memo)


def output_of(session: VerifySession) -> Text:
    return tuple(session.text[len(PROMPT) :])


@dataclass(frozen=True)
class Life:
    """A session that came so far, with what probability, and what is drafted and not judged."""

    weight: float
    session: VerifySession
    rounds: int = 0
    left: DraftTree = field(default_factory=DraftTree)


@dataclass(frozen=True)
class Way:
    """One outcome of a life's next block; `left` is still to be judged."""

    life: Life
    block: Judged
    decision: Decision
    left: DraftTree = field(default_factory=DraftTree)

    @property
    def output(self) -> Text:
        return (*output_of(self.life.session), *emitted(self.block.task, self.decision))

    def lived(self, weight: float) -> Life:
        """The session behind it, with the probability of all ways that lead there."""
        return Life(weight, concluded(self.block, self.decision), self.life.rounds + 1, self.left)


def offered(life: Life, tree: DraftTree, *, chained: bool, bonus: bool) -> Task:
    """What is left to verify of a block that is sent to a session whose text goes on."""
    session, number = life.session, life.rounds + 1
    base = session.output_len
    command = Verify("s", 1, number, base, tree, life.rounds if chained else 0, bonus)
    session.enqueue(Block(command, 0.0))
    task = session.resolve(session.queue.popleft())
    assert task is not None
    return task


def forwarded(world: FormedWorld, session: VerifySession, task: Task) -> Judged:
    """A block with its logits; the cache holds what was fed."""
    rows = [world.logits(text) for text in texts(task.tree, output_of(session))]
    fed = rows if session.retained is None else rows[1:]
    if (segment := session.segment(task)) is not None:
        session.cache.append(place(segment, TokenCache), segment.token_ids)
    return judged(session, task, torch.stack(fed) if fed else None)


def concluded(block: Judged, decision: Decision) -> VerifySession:
    """The session after a decision; another one than before."""
    session, task = cloned(block.session), block.task
    session.keep_path(task, decision.path)
    session.commit(task, decision.path, decision.final_token, block.logits[decision.leaf_row])
    session.store(decided(session, task, decision))
    assert session.cache.tokens == session.text[: session.cache.length]
    return session


@dataclass(frozen=True)
class Speculated:
    """Whole outputs of rounds of speculation, every draft and every outcome of each counted.

    `shape`: the drafts' parents. `sizes`: the lengths of chained blocks, but for the last one,
    which takes the rest. `reopened`: before each round the session moves to another verifier.
    """

    world: FormedWorld
    drafter: Drafter
    shape: Text
    mode: VerifyMode
    sizes: tuple[int, ...] = ()
    reopened: bool = False

    def distance(self) -> float:
        """Total variation from plain constrained decoding."""
        found, wanted = self.whole_outputs(), self.world.whole_outputs()
        return sum(abs(found[text] - wanted[text]) for text in found | wanted) / 2

    def whole_outputs(self) -> Counter[Text]:
        """The law of what is written."""
        done: Counter[Text] = Counter()
        lives = [Life(1.0, opened(self.world, self.mode))]
        while lives:
            # Equal texts go on as one, in the session that came to it last.
            weights: Counter[Text] = Counter()
            last: dict[Text, Way] = {}
            for way in self._round(lives):
                if size := self.world.ended(way.output):
                    done[way.output[:size]] += way.life.weight
                else:
                    weights[way.output] += way.life.weight
                    last[way.output] = way
            lives = [self._next(way.lived(weights[text])) for text, way in last.items()]
        return done

    def _next(self, life: Life) -> Life:
        if not self.reopened:
            return life
        return Life(life.weight, opened(self.world, self.mode, output_of(life.session)))

    def _round(self, lives: Sequence[Life]) -> Iterator[Way]:
        """Every way from each life to where the last of its chained blocks ends, or a rejection."""
        going = [
            Life(life.weight * draft.weight, cloned(life.session), life.rounds, draft.tree)
            for life in lives
            for draft in drafts(self.drafter, output_of(life.session), self.shape)
        ]
        for number, size in enumerate((*self.sizes, len(self.shape))):
            ways = self._blocks(going, size, chained=number > 0)
            going = []
            for way in ways:
                if way.left and not self.world.ended(way.output):
                    going.append(way.lived(way.life.weight))
                else:
                    yield way

    def _blocks(self, lives: Sequence[Life], size: int, *, chained: bool) -> list[Way]:
        """Every outcome of each life's next block, so long; what is `left` after full acceptance.

        A block with more behind it has no bonus.
        """
        sent, tails = [], []
        for life in lives:
            head, tail = _split(life.left, size)
            task = offered(life, head, chained=chained, bonus=not tail)
            sent.append(forwarded(self.world, life.session, task))
            tails.append(tail)
        cases, blocks, asked = [], [], []
        proposals = judging.proposals(sent) if sent else []
        for life, tail, block, proposed in zip(lives, tails, sent, proposals, strict=True):
            case = Case(life.weight, output_of(life.session), proposed.tree, tail)
            for way in branches(self.world, self.mode, case):
                cases.append(replace(life, weight=way.weight, left=tail))
                blocks.append(block)
                asked.append(_under(proposed, way))
        judgements = zip(cases, blocks, judge(asked), strict=True)
        return [way for judgement in judgements for way in _ends(*judgement)]


def _ends(life: Life, block: Judged, outcome: Outcome) -> Iterator[Way]:
    """An outcome with each token that may follow it."""
    if outcome.all_accepted and not block.task.always_emits:
        yield Way(life, block, Decision(outcome.path, None, True), life.left)
        return
    for token, mass in enumerate(outcome.law.tolist()):
        if mass > 0:
            own = replace(life, weight=life.weight * mass)
            yield Way(own, block, Decision(outcome.path, token, outcome.all_accepted))


def _under(proposed: Proposed, way: Case) -> Proposed:
    return replace(proposed, uniform=lambda *key: way.spans.get(key, WHOLE).tried)


def _split(tree: DraftTree, size: int) -> tuple[DraftTree, DraftTree]:
    """A chain's first tokens, and the others; a tree is one block."""
    if size >= len(tree):
        return tree, DraftTree()
    q = tree.q or ()
    head = replace(tree, token_ids=tree.token_ids[:size], q=q[:size] or None)
    return head, replace(tree, token_ids=tree.token_ids[size:], q=q[size:] or None)
