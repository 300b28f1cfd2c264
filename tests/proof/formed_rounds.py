"""Steps of speculation on outputs of a form, through the verifier's own sessions.

What is left out: the wire and the forward. Every draft, every side of each uniform and every token
after it is counted, until the output ends.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.contract.frames import DraftName, DraftRow
from services.contract.types import DraftTree, VerifyMode
from services.contract.worker_messages import StartVerify
from services.engine.budgeted import KVBudget, place
from services.verifier.refusals import open_matcher
from services.verifier.running.core import RunningCore
from services.verifier.running.session import RunningSession
from services.verifier.running.telling import said, step_row
from services.verifier.running.turns import Decided, Turn, step_turn
from tests.fake_engine import FakeEngine, TokenCache
from tests.proof.formed import PROMPT, FormedWorld
from tests.proof.stepping import FREE, tell, ways
from tests.rules.worlds import Drafter, Text, drafts
from tests.services.running_bench import Fixed

OUTCOME = RunningCore(FakeEngine(), emit=lambda *_: None, worker_id="v", pacing=Fixed())._outcome
"""Takes in what was decided."""


def opened(
    world: FormedWorld, mode: VerifyMode, output: Text = (), seed: int = 0
) -> RunningSession:
    """A session as the verifier opens it behind what is received."""
    opening = StartVerify(1, 1, "s", 1, PROMPT, output, FREE, mode, world.sampling, seed, 8)
    session = RunningSession(0, opening, 0.0)
    structures, wanted = world.language.structures, world.sampling.response_format
    if wanted is not None:
        session.matcher = open_matcher(opening, structures.compiled(wanted), structures)
        while not session.follow_text(1.0):
            pass
    tokens = TokenCache(KVBudget(session.most_tokens), session.most_tokens)
    tokens.say(session.text[:-1])
    session.cache = tokens
    session.opened = session.filled = True
    return session


def cloned(session: RunningSession) -> RunningSession:
    """The same once more: from here on the two live apart."""
    memo: dict[int, object] = {id(session.opening): session.opening}
    if session.matcher is not None:
        known = session.matcher._matcher
        memo[id(known)] = known.deep_copy()
    return copy.deepcopy(session, memo)


def output_of(session: RunningSession) -> Text:
    return tuple(session.text[len(PROMPT) :])


def offered(session: RunningSession, tree: DraftTree) -> None:
    """A draft comes in, behind all of the output, in place of any other."""
    number = session.mailbox.newest.number + 1
    base = len(session.output)
    hashed = session.output.hash_at(base)
    assert hashed is not None
    draft = DraftRow(1, DraftName(1, number), base, hashed, tree)
    assert session.mailbox.put(draft, session.output, 0.0) or not len(tree)


def forwarded(world: FormedWorld, session: RunningSession, size: int) -> Turn:
    """A step with so much of the draft, and its logits; the cache holds what was fed."""
    turn = step_turn(session, session.mailbox.first_tokens(size, session.room))
    tell(turn, world.raw.target)
    session.cache.append(place(turn.segment, TokenCache), turn.segment.token_ids)
    return turn


def concluded(turn: Turn, decided: Decided) -> RunningSession:
    """The session after a decision; another one than before."""
    own = copy.copy(turn)
    own.session = session = cloned(turn.session)
    OUTCOME._take_in(own, decided, step_row(own, decided, said(own, decided), 0.0), 0.0)
    assert session.cache.tokens == session.text[: session.cache.length]
    assert session.cache.length == len(session.text) - 1
    return session


@dataclass(frozen=True)
class Life:
    """A session that came so far, and with what probability."""

    weight: float
    session: RunningSession


@dataclass(frozen=True)
class Speculated:
    """Whole outputs of rounds of speculation, every draft and every outcome of each counted.

    `shape`: the drafts' parents. `sizes`: how much of a draft its first steps verify; the last
    takes the rest. `reopened`: before each round the session moves to another verifier.
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
            last: dict[Text, RunningSession] = {}
            for life in self._round(lives):
                output = output_of(life.session)
                if size := self.world.ended(output):
                    done[output[:size]] += life.weight
                else:
                    weights[output] += life.weight
                    last[output] = life.session
            lives = [self._next(weights[text], own) for text, own in last.items()]
        return done

    def _next(self, weight: float, session: RunningSession) -> Life:
        if not self.reopened:
            return Life(weight, session)
        return Life(weight, opened(self.world, self.mode, output_of(session)))

    def _round(self, lives: Sequence[Life]) -> Iterator[Life]:
        """Every way from each life to where nothing of its draft is left."""
        going = [
            Life(life.weight * draft.weight, self._drafted(life.session, draft.tree))
            for life in lives
            for draft in drafts(self.drafter, output_of(life.session), self.shape)
        ]
        sizes = [*self.sizes]
        while going:
            size = sizes.pop(0) if sizes else len(self.shape)
            ends = [end for life in going for end in self._step(life, size)]
            going = []
            for life in ends:
                ended = self.world.ended(output_of(life.session))
                if len(life.session.mailbox) and not ended:
                    going.append(life)
                else:
                    yield life

    def _drafted(self, session: RunningSession, tree: DraftTree) -> RunningSession:
        own = cloned(session)
        offered(own, tree)
        return own

    def _step(self, life: Life, size: int) -> Iterator[Life]:
        """Every outcome of a life's next step."""
        turn = forwarded(self.world, life.session, size)
        merged: defaultdict[Text, float] = defaultdict(float)
        kinds: dict[Text, Decided] = {}
        for weight, decided in ways(self.world.target, turn):
            tokens = said(turn, decided)
            merged[tokens] += weight
            kinds[tokens] = decided
        for tokens, weight in merged.items():
            yield Life(life.weight * weight, concluded(turn, kinds[tokens]))
