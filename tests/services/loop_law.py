"""The law of what a verifier says that takes drafts from its mailbox, worked out exactly.

One session: the real `HypothesisSession`, the real `Mailbox`, and between them a wire that delays
and doubles. A tick: the drafter may draw, may send; the wire may deliver; the verifier begins or
ends a step; the drafter may hear of one. Who does what is an adversary's: a pseudo-random function
of tick, counts and the text that stands, never of a token that is not judged yet. Every draw
branches with its exact probability, equal states are merged, and the law of the text is held
against the target's.

A random number that is used once is a branch by itself; one whose key comes again is kept in the
state as the interval that it is known to lie in.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from services.contract.frames import DraftName, DraftRow
from services.contract.types import DraftTree, Proposal, SparseRow, VerifyMode
from services.drafter.hypotheses.session import HypothesisSession
from services.drafter.protocol import Proposed
from services.verifier.running.mailbox import Mailbox
from services.verifier.running.output import Output
from tests.services.hypothesis_kit import starting

ZERO, ONE = Fraction(0), Fraction(1)
Text = tuple[int, ...]
Law = tuple[Fraction, ...]
Key = tuple[Any, ...]
PROMPT = (0,)


def mixed(*info: Any) -> int:
    """A number that looks like chance, the same in every run."""
    return zlib.crc32(repr(info).encode())


# --- Chance ----------------------------------------------------------------------


class Dice:
    """One path through the choices of a function."""

    def __init__(self, path: Text, noise: Sequence[tuple[Key, Any]]) -> None:
        self.path, self.at, self.weight = path, 0, ONE
        self.todo: list[Text] = []
        self.noise = dict(noise)
        self.keys: list[Key] = []
        """Those of all draws."""

    def pick(self, weights: Sequence[Fraction]) -> int:
        """An index, with these probabilities."""
        real = [i for i, weight in enumerate(weights) if weight > 0]
        if len(real) == 1:
            return real[0]
        if self.at == len(self.path):
            self.todo += [(*self.path, other) for other in real[1:]]
            self.path = (*self.path, real[0])
        chosen = self.path[self.at]
        self.at += 1
        self.weight *= weights[chosen]
        return chosen

    def draw(self, law: Law, key: Key | None = None) -> int:
        """A token by the inverse of the sums of `law` at the number of a key; None = its own."""
        if key is None:
            return self.pick(law)
        low, high = self.noise.get(key, (ZERO, ONE))
        parts, start = [], ZERO
        for mass in law:
            begin = max(low, start)
            parts.append((begin, max(begin, min(high, start + mass))))
            start += mass
        chosen = self.pick([(end - begin) / (high - low) for begin, end in parts])
        self.noise[key] = parts[chosen]
        return chosen

    def below(self, threshold: Fraction, key: Key | None = None) -> bool:
        """Whether the number of a key is below a threshold."""
        threshold = min(ONE, threshold)
        return self.draw((threshold, ONE - threshold), key) == 0


class RandomDice(Dice):
    """A path by chance."""

    def __init__(self, rng: random.Random, noise: Sequence[tuple[Key, Any]]) -> None:
        super().__init__((), noise)
        self._rng = rng

    def pick(self, weights: Sequence[Fraction]) -> int:
        """An index, with about these probabilities."""
        return self._rng.choices(range(len(weights)), [float(weight) for weight in weights])[0]


class World:
    """Target and draft laws over `size` tokens, given the text."""

    def __init__(self, seed: int, size: int = 2) -> None:
        self.size = size
        self.p: Callable[[Text], Law] = lru_cache(None)(lambda text: self._law(seed, 1, text))
        self.q: Callable[[Text], Law] = lru_cache(None)(lambda text: self._law(seed, 2, text))

    def _law(self, seed: int, who: int, text: Text) -> Law:
        rng = random.Random(mixed(seed, who, self.size, text))
        weights = [rng.choice((1, 2, 3, 5, 8)) for _ in range(self.size)]
        return tuple(Fraction(weight, sum(weights)) for weight in weights)

    def sent(self, text: Text) -> SparseRow:
        """The draft law as it is sent."""
        return SparseRow(tuple(range(self.size)), tuple(map(float, self.q(text))))

    def texts(self, length: int) -> dict[Text, Fraction]:
        """The target's law."""
        law: dict[Text, Fraction] = {(): ONE}
        for _ in range(length):
            law = {(*t, x): w * self.p(t)[x] for t, w in law.items() for x in range(self.size)}
        return law


# --- The rules -------------------------------------------------------------------

Keyed = Callable[[str, int], Key | None]
"""The key of a number: (stream, row of the step)."""


def left_over(p: Law, q: Law, scale: Fraction = ONE) -> Law:
    """What of the target's law the draft's does not cover."""
    rest = [max(ZERO, scale * a - b) for a, b in zip(p, q, strict=True)]
    return tuple(part / sum(rest) for part in rest) if sum(rest) else p


def standard(world: World, text: Text, tokens: Text, dice: Dice, key: Keyed) -> tuple[Text, bool]:
    """Leviathan et al., 2211.17192: the tokens said, and whether all were accepted."""
    for i, token in enumerate(tokens):
        p, q = world.p(text + tokens[:i]), world.q(text + tokens[:i])
        if not dice.below(p[token] / q[token], key("A", i)):
            return (*tokens[:i], dice.draw(left_over(p, q), key("R", i))), False
    return tokens, True


def block(world: World, text: Text, tokens: Text, dice: Dice, key: Keyed) -> tuple[Text, bool]:
    """Sun et al., 2403.10444, algorithm 2: the same."""
    reach = [ONE]
    for i, token in enumerate(tokens):
        before = text + tokens[:i]
        reach.append(min(ONE, reach[-1] * world.p(before)[token] / world.q(before)[token]))
    for i in range(len(tokens), 0, -1):
        if dice.below(_chance(world, text, tokens, reach, i), key("A", i - 1)):
            break
    else:
        i = 0
    if i == len(tokens):
        return tokens, True
    before = text + tokens[:i]
    law = left_over(world.p(before), world.q(before), reach[i])
    return (*tokens[:i], dice.draw(law, key("R", i))), False


def _chance(world: World, text: Text, tokens: Text, reach: Sequence[Fraction], i: int) -> Fraction:
    """That the block is accepted up to its token i, if it is not beyond."""
    if i == len(tokens):
        return reach[i]
    before = text + tokens[:i]
    pairs = zip(world.p(before), world.q(before), strict=True)
    rest = sum((max(ZERO, reach[i] * a - b) for a, b in pairs), ZERO)
    down = rest + 1 - reach[i]
    return rest / down if down else ONE


# --- The loop --------------------------------------------------------------------

Frozen = tuple[Any, ...]
"""What one of our objects holds."""


def frozen(own: HypothesisSession | Mailbox) -> Frozen:
    """Its fields, unchangeable."""
    values = [getattr(own, name) for name in own.__slots__]
    return tuple(
        [
            ("list", *value)
            if isinstance(value, list)
            else ("bytes", *value)
            if isinstance(value, bytearray)
            else value
            for value in values
        ]
    )


def thawed(kind: type, values: Frozen) -> Any:
    """The object again."""
    own: Any = object.__new__(kind)
    for name, value in zip(own.__slots__, values, strict=True):
        if isinstance(value, tuple) and value[:1] == ("list",):
            value = list(value[1:])
        elif isinstance(value, tuple) and value[:1] == ("bytes",):
            value = bytearray(value[1:])
        setattr(own, name, value)
    return own


class State(NamedTuple):
    """Where everything stands.

    `step`: the tokens that the running step verifies, and whose they are; None = none runs.
    `wire`: drafts on their way. `frames`: steps that the orchestrator, and with it the drafter, has
    not heard of. `stored`: length of the text that the store has.
    """

    text: Text
    box: Frozen
    session: Frozen
    step: tuple[Text, DraftName] | None = None
    wire: tuple[DraftRow, ...] = ()
    frames: tuple[tuple[int, Text], ...] = ()
    stored: int = 0
    term: int = 1
    opening: int = 1
    steps: int = 0
    struck: bool = False


class Loop:
    """One world, rule, length of text and adversary; a case overrides what it does otherwise."""

    strikes = ""
    """Who dies: verifier, drafter or orchestrator."""
    synchronous = False
    window = 4
    moves_window = False
    mailbox: type[Mailbox] = Mailbox
    checks_laws = True
    """Each token is judged by the very law that it came with."""

    def __init__(self, world: World, mode: VerifyMode, length: int, seed: int) -> None:
        self.world, self.mode, self.length, self.seed = world, mode, length, seed
        self.rule = standard if mode is VerifyMode.STANDARD else block
        self.seen: Counter[str] = Counter()
        """What the adversary brought about."""
        self.known = lru_cache(None)(self._known)

    # --- the adversary

    def plan(self, what: str, tick: int, st: State, most: int = 2) -> int:
        """0 .. most - 1, from time, counts and the text that stands."""
        info: tuple[Any, ...] = (self.seed, what, tick)
        if not (self.strikes and what in ("hear", "store")):
            info += (st.text, len(st.frames), len(st.wire), self.tail(st))
        return mixed(*info) % 104729 % most

    def tail(self, st: State) -> int:
        """How much is drafted."""
        return int(thawed(HypothesisSession, st.session).tail_length)

    def _known(self, session: Frozen) -> Text:
        """The output that the drafter knows."""
        own = thawed(HypothesisSession, session)
        return tuple(own.text[len(PROMPT) :][: own.committed_length])

    def key(self, dice: Dice, *key: Any) -> Key | None:
        """What a number is keyed by, where that key may come again."""
        dice.keys.append(key)
        return self.shared(*key)

    def shared(self, *key: Any) -> Key | None:
        """None: it does not."""
        return None

    # --- the drafter

    def start(self, text: Text, term: int, opening: int) -> HypothesisSession:
        """A session at a drafter."""
        sampling: dict[str, Any] = {"max_tokens": self.length, "stop_token_ids": (1,)}
        return HypothesisSession(
            starting(
                prompt=PROMPT,
                output=text,
                mode=self.mode,
                term=term,
                opening=opening,
                window=self.window,
                synchronous=self.synchronous,
                **sampling,
            )
        )

    def draw_one(self, session: HypothesisSession, dice: Dice) -> None:
        """A level."""
        text = tuple(session.text[len(PROMPT) :])
        token = dice.draw(self.world.q(text), self.key(dice, "D", session.key, len(text)))
        tree = DraftTree((token,), None, (self.world.sent(text),), Proposal.SAMPLED)
        session.absorb(Proposed(tree))

    def may_send(self, st: State, tick: int, session: HypothesisSession) -> bool:
        """Whether a frame leaves now."""
        return self.plan("send", tick, st) == 0

    def draft(self, st: State, tick: int, dice: Dice) -> State:
        """The drafter's part of a tick."""
        session = thawed(HypothesisSession, st.session)
        if self.moves_window and tick % 5 == 0:
            session.set_window(self.plan("window", tick, st, 4))
        for _ in range(self.plan("draw", tick, st, 4)):
            if session.due:
                self.draw_one(session, dice)
        st = st._replace(session=frozen(session))
        sends = len(st.wire) < 2 and self.may_send(st, tick, session)
        if sends and (row := session.taken()) is not None:
            st = st._replace(wire=(*st.wire, row))
        return st._replace(session=frozen(session))

    def hear(self, st: State) -> State:
        """The next step reaches the orchestrator and the drafter."""
        session = thawed(HypothesisSession, st.session)
        session.take(*st.frames[0])
        self.seen["kept its draft"] += session.tail_length > 0
        return st._replace(session=frozen(session), frames=st.frames[1:])

    # --- the verifier

    def box(self, st: State) -> Mailbox:
        """Its mailbox."""
        own: Mailbox = thawed(self.mailbox, st.box)
        return own

    def deliver(self, st: State, tick: int) -> State:
        """A draft arrives, perhaps not for the last time."""
        box = self.box(st)
        box.put(st.wire[0], Output([*PROMPT, *st.text], len(PROMPT)), 0.0)
        again = self.plan("again", tick, st, 4) == 0
        return st._replace(box=frozen(box), wire=st.wire if again else st.wire[1:])

    def begin(self, st: State, tick: int) -> State:
        """A step takes some of the mailbox's tokens, how many follows from counts."""
        box = self.box(st)
        most = min(len(box), self.length - len(st.text))
        count = min(most, self.plan("rows", tick, st, most + 2))
        return st._replace(step=(tuple(box.tokens[:count]), box.name), steps=st.steps + 1)

    def end(self, st: State, dice: Dice) -> State:
        """Judge them; the last row judges what the mailbox has by now, or gives a token."""
        assert st.step is not None
        (taken, name), box, before = st.step, self.box(st), len(st.text)
        self.check(box, st.text, taken)
        said, whole = self.judge(st, dice, st.text, taken, 0) if taken else ((), True)
        self.seen["rejected"] += not whole
        self.follow(box, said)
        text = st.text + said
        if whole and len(text) < self.length:
            text += self.last_row(st, dice, box, text, name if taken else box.name, len(taken))
            self.follow(box, text[before + len(said) :])
        frames = (*st.frames, (before, text[before:]))
        return st._replace(text=text, step=None, box=frozen(box), frames=frames)

    @staticmethod
    def follow(box: Mailbox, said: Text) -> None:
        """The text has grown."""
        box.follow(said)

    def last_row(
        self, st: State, dice: Dice, box: Mailbox, text: Text, name: DraftName, row: int
    ) -> Text:
        """The row behind a step that was accepted whole."""
        more = tuple(box.tokens[:1])
        if more and box.name == name:
            self.seen["judged late"] += 1
            self.check(box, text, more)
            return self.judge(st, dice, text, more, row)[0]
        return (dice.draw(self.world.p(text), self.key(dice, "B", st.term, st.opening, st.steps)),)

    def judge(self, st: State, dice: Dice, text: Text, tokens: Text, row: int) -> tuple[Text, bool]:
        """By the session's rule."""

        def keyed(stream: str, i: int) -> Key | None:
            return self.key(dice, stream, st.term, st.opening, st.steps, row + i, len(text) + i)

        return self.rule(self.world, text, tokens, dice, keyed)

    def check(self, box: Mailbox, text: Text, tokens: Text) -> None:
        """Each token came with the law that it was drawn from, at this very place."""
        if not self.checks_laws or not tokens or tuple(box.tokens[: len(tokens)]) != tokens:
            return
        laws = [self.world.sent(text + tokens[:i]) for i in range(len(tokens))]
        assert box.q is not None
        assert box.q[: len(tokens)] == laws

    # --- who goes away

    def hits(self, st: State, tick: int) -> bool:
        """Whether somebody dies now: what is lost with it must not decide that."""
        seen = st.text
        if self.strikes != "drafter":
            seen = self.known(st.session)
            seen = seen[: st.stored] if self.strikes == "orchestrator" else seen
        begin = 2 + mixed(self.seed, "begin") % 14
        return tick >= begin and mixed(self.seed, "strike", tick, seen) % 2 == 0

    def strike(self, st: State) -> State:
        """Sessions open anew: from what was received or, with another orchestrator, stored."""
        session = thawed(HypothesisSession, st.session)
        known, opening = self.known(st.session), session.opening + 1
        if self.strikes == "drafter":
            fresh = frozen(self.start(known, st.term, opening))
            return st._replace(session=fresh, wire=(), struck=True)
        if self.strikes == "verifier":
            return State(
                known,
                frozen(self.mailbox(opening)),
                frozen(self.start(known, st.term, opening)),
                wire=st.wire,
                opening=st.opening + 1,
                struck=True,
            )
        text = known[: st.stored]
        return State(
            text,
            frozen(self.mailbox(1)),
            frozen(self.start(text, 2, 1)),
            stored=len(text),
            term=2,
            struck=True,
        )

    # --- a life

    def first(self) -> State:
        """Nothing has happened."""
        return State((), frozen(self.mailbox(1)), frozen(self.start((), 1, 1)))

    def tick(self, st: State, tick: int, dice: Dice) -> State:
        """What happens at once."""
        if self.strikes and not st.struck and self.hits(st, tick):
            self.seen["died with work under way"] += st.step is not None or bool(st.frames)
            return self.strike(st)
        st = self.draft(st, tick, dice)
        if st.wire and self.plan("deliver", tick, st, 3):
            st = self.deliver(st, tick)
        if st.step is None:
            begins = tick % 4 == 3 or self.plan("begin", tick, st, 3) == 0
            st = self.begin(st, tick) if begins and len(st.text) < self.length else st
        elif tick % 4 == 1 or self.plan("end", tick, st, 3) == 0:
            st = self.end(st, dice)
        if st.frames and (tick % 4 == 0 or self.plan("hear", tick, st)):
            st = self.hear(st)
        if self.strikes == "orchestrator" and self.plan("store", tick, st):
            st = st._replace(stored=len(self.known(st.session)))
        return st

    def done(self, st: State, tick: int) -> bool:
        """Somebody may die yet, and take with it what is not stored."""
        return len(st.text) >= self.length and (not self.strikes or st.struck or tick > 30)

    def ways(
        self, st: State, tick: int, noise: Sequence[tuple[Key, Any]]
    ) -> Iterator[tuple[Fraction, State, tuple[tuple[Key, Any], ...]]]:
        """Every way in which a tick may go: its probability, and what is then."""
        todo: list[Text] = [()]
        while todo:
            dice = Dice(todo.pop(), noise)
            after = self.tick(st, tick, dice)
            todo += dice.todo
            yield dice.weight, after, tuple(sorted(dice.noise.items()))

    def law(self) -> dict[Text, Fraction]:
        """Of the finished text."""
        states: dict[Any, Fraction] = {(self.first(), ()): ONE}
        law: dict[Text, Fraction] = {}
        for tick in range(400):
            after: dict[Any, Fraction] = {}
            for (st, noise), weight in states.items():
                if self.done(st, tick):
                    text = st.text[: self.length]
                    law[text] = law.get(text, ZERO) + weight
                    continue
                for share, then, own in self.ways(st, tick, noise):
                    after[then, own] = after.get((then, own), ZERO) + weight * share
            states = after
        assert sum(law.values()) == 1, "somebody waits for ever"
        return law

    def error(self) -> Fraction:
        """The largest difference of a text's probability from the target's."""
        law, right = self.law(), self.world.texts(self.length)
        return max(abs(law.get(text, ZERO) - right.get(text, ZERO)) for text in {*law, *right})

    def life(self, rng: random.Random) -> list[Key]:
        """By chance; the keys of all draws."""
        st, keys, noise, tick = self.first(), [], (), 0
        while not self.done(st, tick):
            dice = RandomDice(rng, noise)
            st = self.tick(st, tick, dice)
            keys += dice.keys
            tick += 1
        return keys
