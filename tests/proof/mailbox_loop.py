"""One session around the real mailbox and the real running core, by exact enumeration.

A tick: the drafter may draw and send; the wire may deliver, doubled or late; the verifier begins
or ends a step; the drafter may hear the frame; somebody may die. Who does what when is the
adversary's: a function of tick, counts and the text that stands, never of a token that is not
judged yet. Every draw branches with its probability, equal states are merged, and the law of the
finished text is the target's.

Frames are put into the real `Mailbox`, and a step is one of the real `RunningCore` on a table of
laws. It is asked again and again, its random numbers just below and above the thresholds worked
out by hand: one that is off by more than 1e-12 makes the law of the text wrong.
"""

from __future__ import annotations

import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from services.contract.frames import NO_NAME, DraftName, DraftRow, draft_frame, grants, step_rows
from services.contract.types import (
    EMPTY_HASH,
    DraftTree,
    Proposal,
    ResolvedSampling,
    SparseRow,
    VerifyMode,
    extend_hash,
)
from services.contract.worker_messages import SetWindow, StartVerify
from services.engine.noise import Stream
from services.runtime.proposer import LocalDraft
from services.verifier.options import VerifierOptions
from services.verifier.running import core as running
from services.verifier.running.mailbox import Mailbox
from services.verifier.running.output import Output
from tests.fake_engine import FakeEngine
from tests.proof.laws import (
    VOCAB,
    Law,
    Text,
    dense,
    drafted,
    residual,
    row,
    target,
    texts,
    thresholds,
)
from tests.services.running_bench import Fixed

EDGE = 2.0**-40
PROMPT = (0,)
TICKS = 400
SEEN: Counter[str] = Counter()
"""What the adversaries brought about."""


def mixed(*info: Any) -> int:
    """A number that looks like chance, the same in every run."""
    return zlib.crc32(repr(info).encode())


class Box(NamedTuple):
    """What a mailbox holds behind the text; `newest` and `first` as there."""

    name: DraftName = DraftName()
    tokens: Text = ()
    newest: DraftName = DraftName()
    first: int = 1


class Message(NamedTuple):
    """A draft on its way: all of it, or what is new of it, behind the text `before`."""

    name: DraftName
    before: Text
    tokens: Text


class State(NamedTuple):
    """The verifier's text and mailbox; what runs; what the orchestrator and the drafter know."""

    text: Text = ()
    box: Box = Box()
    step: int | None = None
    came: tuple[Message, ...] = ()
    """During the step."""
    wire: tuple[Message, ...] = ()
    known: int = 0
    stored: int = 0
    tail: Text = ()
    sent: int = 0
    opening: int = 1
    number: int = 0
    struck: bool = False

    @property
    def view(self) -> Text:
        """What the drafter knows of the text."""
        return self.text[: self.known]


@cache
def sent(text: Text) -> SparseRow:
    """The law of a draft after a text, in the single precision that columns have."""
    exact = row(drafted(text))
    return SparseRow(exact.token_ids, tuple(array("f", exact.probabilities)))


@cache
def drawn_from(text: Text) -> Law:
    """The law that a drafter draws from: the one that it sends."""
    return dense(sent(text))


def chain(before: Text, tokens: Text) -> DraftTree:
    """Drawn tokens as they are sent."""
    rows = tuple([sent(before + tokens[:i]) for i in range(len(tokens))])
    return DraftTree(tokens, None, rows, Proposal.SAMPLED)


def put(mailbox: Mailbox, text: Text, message: Message) -> None:
    """A message comes in, as the core puts it."""
    hashed = extend_hash(EMPTY_HASH, message.before)
    tree = chain(message.before, message.tokens)
    draft = DraftRow(1, message.name, len(message.before), hashed, tree)
    mailbox.put(draft, Output([*PROMPT, *text], len(PROMPT)), 0.0)


def restored(box: Box, text: Text) -> Mailbox:
    """A mailbox that holds this."""
    mailbox = Mailbox(box.first)
    if box.tokens and box.name == NO_NAME:
        mailbox.propose(LocalDraft(chain(text, box.tokens)), 0.0)
    elif box.tokens:
        put(mailbox, text, Message(box.name, text, box.tokens))
        assert tuple(mailbox.tokens) == box.tokens
    mailbox.newest = box.newest
    return mailbox


def box_of(mailbox: Mailbox) -> Box:
    """What a mailbox holds."""
    return Box(mailbox.name, tuple(mailbox.tokens), mailbox.newest, mailbox.first)


# --- a step of the real core ----------------------------------------------------------------


class Laws(FakeEngine):
    """Says the logarithms of the target's law, as they are, in float64."""

    def __init__(self) -> None:
        super().__init__(vocab_size=VOCAB)

    def logits(self, text: Any) -> torch.Tensor:
        """After prompt and output."""
        return torch.tensor(target(tuple(text[len(PROMPT) :])), dtype=torch.float64).log()


Draw = tuple[Stream, int]


class Step:
    """One step of a session: its text, its mailbox, how much is verified, what comes meanwhile."""

    def __init__(
        self,
        mode: VerifyMode,
        text: Text,
        box: Box,
        size: int,
        came: tuple[Message, ...],
        most: int,
    ) -> None:
        self.mode, self.text, self.box, self.size, self.came = mode, text, box, size, came
        self.most = most
        self.taken = box.tokens[: min(size, most - len(text))]
        mailbox = restored(box, text)
        for message in came:
            put(mailbox, text, message)
        same = not self.taken or mailbox.name == box.name
        self.late = mailbox.next_level(self.taken).token_ids if same else ()

    def outcomes(self, known: dict[Draw, float], weight: float) -> Iterator[tuple[float, Any]]:
        """Every outcome with its probability."""
        result, missing = self._ask(known)
        if missing is None:
            yield weight, result
            return
        for number, chance in self._choices(*missing):
            yield from self.outcomes({**known, missing: number}, weight * chance)

    def _ask(self, known: dict[Draw, float]) -> tuple[Any, Draw | None]:
        missing: list[Draw] = []

        def number(_seed: int, stream: Stream, *counters: int) -> float:
            *_, node, candidate = counters
            assert candidate == 0
            if (stream, node) not in known:
                missing.append((stream, node))
            return known.get((stream, node), 0.5)

        with patch("services.verifier.running.turns.uniform", number):
            result = self._run()
        return result, missing[0] if missing else None

    def _run(self) -> tuple[Text, Box]:
        frames: list[Any] = []
        core = running.RunningCore(
            Laws(),
            emit=lambda _, event: frames.append(event),
            worker_id="v",
            pacing=Fixed(),
            options=VerifierOptions(prefix_cache_tokens=0, clock=lambda: 0.0),
            absorb=lambda: [core.handle(1, frame) for frame in self._frames()][:0],
        )
        core.handle(1, self._start())
        while core.step():
            pass
        [session] = core._sessions.every.values()
        session.mailbox = restored(self.box, self.text)
        core.handle(1, SetWindow(1, self.size))
        core.handle(1, grants([(1, self.most)]))
        frames.clear()
        assert core.step()
        [own] = [step_rows(frame) for frame in frames]
        [told] = own
        assert tuple(session.text) == (*PROMPT, *self.text, *told.tokens)
        return self.text + told.tokens, box_of(session.mailbox)

    def _start(self) -> StartVerify:
        sampling = ResolvedSampling(temperature=1.0, max_tokens=self.most)
        count = len(self.text)
        return StartVerify(
            1, 1, "s", 1, PROMPT, self.text, count, self.mode, sampling, 1, 8, first_drafts=1
        )

    def _frames(self) -> Iterator[Any]:
        for message in self.came:
            tree = chain(message.before, message.tokens)
            hashed = extend_hash(EMPTY_HASH, message.before)
            draft = DraftRow(1, message.name, len(message.before), hashed, tree)
            yield draft_frame([draft])

    def _choices(self, stream: Stream, node: int) -> Iterator[tuple[float, float]]:
        """Numbers on both sides of each threshold, with the probability that each stands for."""
        behind = node >= len(self.taken)
        text = self.text + self.taken if behind else self.text
        tokens = self.late if behind else self.taken
        place = node - len(self.taken) if behind else node
        tree = chain(text, tokens)
        p = target(text + tokens[:place])
        if stream is Stream.BONUS:
            yield from _one_for_each(p)
            return
        accept, scaled = thresholds(text, tree, self.mode)
        if stream is Stream.ACCEPT:
            yield from _two_sides(accept[place])
            return
        scale = scaled[place - 1] if place else 1.0
        yield from _one_for_each(residual(p, drawn_from(text + tokens[:place]), scale))


def _two_sides(h: float) -> Iterator[tuple[float, float]]:
    if h > 0:
        yield h * (1 - EDGE), h
    if h < 1:
        yield h + (1 - h) * EDGE, 1 - h


def _one_for_each(law: tuple[float, ...]) -> Iterator[tuple[float, float]]:
    for below, mass in zip(accumulate(law, initial=0.0), law, strict=False):
        if mass > 1e-12:
            yield below + mass * EDGE, mass


def exact_laws() -> Any:
    """Laws of a step as the table has them: in single precision thresholds would be off by 1e-8."""
    return patch(
        "services.verifier.judging.log_law",
        lambda logits, _: torch.log_softmax(logits, dim=-1),
    )


# --- the loop ------------------------------------------------------------------------------


class Loop:
    """What the design allows; a case overrides what it does otherwise."""

    strikes = ""
    credit = 99
    window = 3
    incremental = True

    def __init__(self, mode: VerifyMode, length: int, seed: int) -> None:
        self.mode, self.length, self.seed = mode, length, seed
        self._stepped = cache(self._step)

    # --- the adversary

    def plan(self, what: str, tick: int, st: State, most: int = 2) -> int:
        """0 to most - 1, from time, counts and the text that stands.

        Where processes die, what carries frames and stores them follows from time alone.
        """
        info: tuple[Any, ...] = (self.seed, what, tick)
        if not self.strikes or what not in ("hear", "store"):
            held = -1 if st.step is not None else len(st.box.tokens)
            info += (st.text, st.known, held, len(st.wire), len(st.tail))
        return mixed(*info) % 104729 % most

    # --- the drafter

    def drawn(self, st: State) -> Iterator[tuple[float, State]]:
        """One more token of the tail."""
        law = drawn_from(st.view + st.tail)
        for token, mass in enumerate(law):
            if mass > 0:
                yield mass, st._replace(tail=(*st.tail, token))

    def send(self, st: State) -> State:
        """What is new of the tail; all of it where nothing was sent."""
        first = st.sent if self.incremental else 0
        before, tokens = st.view + st.tail[:first], st.tail[first:]
        message = Message(DraftName(st.opening, st.number), before, tokens)
        return st._replace(wire=(*st.wire, message), sent=len(st.tail))

    def hear(self, st: State) -> State:
        """A frame: what agrees is cut off the tail, or the draft is given up."""
        new = st.text[st.known :]
        st = st._replace(known=len(st.text))
        if st.tail[: len(new)] == new:
            return st._replace(tail=st.tail[len(new) :], sent=max(0, st.sent - len(new)))
        return st._replace(tail=(), sent=0, number=st.number + 1)

    # --- the verifier

    def deliver(self, st: State, message: Message) -> State:
        """Into the mailbox; while a step runs, behind its forward."""
        SEEN["in the middle of a step"] += st.step is not None
        if st.step is not None:
            return st._replace(came=(*st.came, message))
        mailbox = restored(st.box, st.text)
        put(mailbox, st.text, message)
        return st._replace(box=box_of(mailbox))

    def begin(self, st: State, tick: int) -> State:
        """A step begins with some of the mailbox's tokens, if there is credit."""
        if len(st.text) - st.known >= self.credit:
            return st
        held = len(st.box.tokens)
        return st._replace(step=min(held, self.plan("rows", tick, st, held + 2)))

    def end(self, st: State) -> Iterator[tuple[float, State]]:
        """The step of the real core, with what has come."""
        assert st.step is not None
        for weight, (text, box) in self._stepped(st.text, st.box, st.step, st.came):
            SEEN["late tokens judged"] += len(text) - len(st.text) == st.step and bool(st.came)
            yield weight, st._replace(text=text, box=box, step=None, came=())

    def _step(self, text: Text, box: Box, size: int, came: tuple[Message, ...]) -> list[Any]:
        merged: defaultdict[Any, float] = defaultdict(float)
        step = Step(self.mode, text, box, size, came, self.length)
        for weight, result in step.outcomes({}, 1.0):
            merged[result] += weight
        return [(weight, result) for result, weight in merged.items()]

    # --- who goes away

    def strike(self, st: State) -> State:
        """The verifier dies, its drafter begins anew; or the drafter; or the orchestrator."""
        opening = st.opening + 1
        if self.strikes == "drafter":
            return st._replace(opening=opening, number=0, tail=(), sent=0, struck=True)
        if self.strikes == "verifier":
            text, box = st.text[: st.known], Box(first=opening)
            wire = st.wire + st.came
            return State(
                text, box, wire=wire, known=st.known, opening=opening, struck=True
            )._replace(stored=st.stored)
        text = st.text[: st.stored]
        return State(text, known=len(text), stored=len(text), struck=True)

    def hits(self, st: State, tick: int) -> bool:
        """Whether it strikes now: what is lost with it has no say in that."""
        kept = {"drafter": len(st.text), "verifier": st.known}.get(self.strikes, st.stored)
        late = tick >= 2 + mixed(self.seed, "begin") % 14
        return late and mixed(self.seed, "strike", tick, st.text[:kept]) % 2 == 0

    # --- a tick

    def tick(self, st: State, tick: int) -> Iterator[tuple[float, State]]:
        """What becomes of a state, with probabilities."""
        if self.strikes and not st.struck and self.hits(st, tick):
            yield 1.0, self.strike(st)
            return
        states = [(1.0, st)]
        for _ in range(self.plan("draw", tick, st, 4)):
            states = [two for one in states for two in self._drawn(*one)]
        for weight, own in states:
            for more, after in self._went_on(self._wired(own, tick), tick):
                yield weight * more, self._heard(after, tick)

    def _drawn(self, weight: float, st: State) -> Iterator[tuple[float, State]]:
        if len(st.tail) < self.window and len(st.view) + len(st.tail) < self.length:
            for more, after in self.drawn(st):
                yield weight * more, after
        else:
            yield weight, st

    def _wired(self, st: State, tick: int) -> State:
        if len(st.tail) > st.sent and len(st.wire) < 2 and self.plan("send", tick, st) == 0:
            st = self.send(st)
        if st.wire and self.plan("deliver", tick, st, 3):
            again = self.plan("again", tick, st, 4) == 0 and len(st.came) < 2
            SEEN["doubled"] += again
            st = self.deliver(st, st.wire[0])
            st = st if again else st._replace(wire=st.wire[1:])
        return st

    def _went_on(self, st: State, tick: int) -> Iterator[tuple[float, State]]:
        done = len(st.text) >= self.length
        if st.step is None:
            if not done and (tick % 4 == 3 or self.plan("begin", tick, st, 3) == 0):
                st = self.begin(st, tick)
            yield 1.0, st
        elif tick % 4 == 1 or self.plan("end", tick, st, 3) == 0:
            yield from self.end(st)
        else:
            yield 1.0, st

    def _heard(self, st: State, tick: int) -> State:
        if st.known < len(st.text) and (tick % 4 == 0 or self.plan("hear", tick, st)):
            st = self.hear(st)
        if st.stored < st.known and self.plan("store", tick, st):
            st = st._replace(stored=st.known)
        return st

    def law(self) -> dict[Text, float]:
        """The law of the finished text."""
        states: dict[State, float] = {State(): 1.0}
        law: defaultdict[Text, float] = defaultdict(float)
        for tick in range(TICKS):
            after: defaultdict[State, float] = defaultdict(float)
            for st, weight in states.items():
                if len(st.text) >= self.length and (not self.strikes or st.struck or tick > 30):
                    law[st.text[: self.length]] += weight
                    continue
                for more, then in self.tick(st, tick):
                    after[then] += weight * more
            if not after:
                return law
            states = after
        raise AssertionError("somebody waits for ever")

    def error(self) -> float:
        """The largest difference of a text's probability from the target's."""
        with exact_laws():
            law = self.law()
        right = dict(texts(self.length))
        return max(abs(law.get(text, 0.0) - right.get(text, 0.0)) for text in {*law, *right})


class Redrawn(Loop):
    """The drafter starts over now and then, for no reason that is in a token."""

    def drawn(self, st: State) -> Iterator[tuple[float, State]]:
        again = mixed(self.seed, "restart", st.number, len(st.tail), st.view) % 2
        if st.tail and again:
            st = st._replace(tail=(), sent=0, number=st.number + 1)
        yield from super().drawn(st)


class WholeEachTime(Loop):
    """Each message has all of the draft: what overlaps is nothing, what is new replaces."""

    incremental = False


class SmallCredit(Loop):
    """Nobody runs more than a step ahead of what is known."""

    credit = 1


class DrafterDies(Loop):
    """What the dead one left in the mailbox, or on the wire, may still be judged."""

    strikes = "drafter"


class VerifierDies(Loop):
    """Opened anew behind what was received; every earlier draft is void, however late it comes."""

    strikes = "verifier"


class OrchestratorDies(Loop):
    """A takeover, behind what is stored."""

    strikes = "orchestrator"


class DraftsHereToo(Loop):
    """The verifier drafts by itself where its mailbox is empty, beside a drafter."""

    def _went_on(self, st: State, tick: int) -> Iterator[tuple[float, State]]:
        for weight, own in self._proposed(st, tick):
            for more, after in super()._went_on(own, tick):
                yield weight * more, after

    def _proposed(self, st: State, tick: int) -> Iterator[tuple[float, State]]:
        room = self.length - len(st.text)
        if st.step is not None or st.box.tokens or room <= 0 or self.plan("propose", tick, st):
            yield 1.0, st
            return
        drafts: list[tuple[float, Text]] = [(1.0, ())]
        for _ in range(min(room, 1 + self.plan("own", tick, st))):
            drafts = [
                (weight * mass, (*tokens, token))
                for weight, tokens in drafts
                for token, mass in enumerate(drawn_from(st.text + tokens))
                if mass > 0
            ]
        for weight, tokens in drafts:
            mailbox = restored(st.box, st.text)
            mailbox.propose(LocalDraft(chain(st.text, tokens)), 0.0)
            yield weight, st._replace(box=box_of(mailbox))

    def end(self, st: State) -> Iterator[tuple[float, State]]:
        """A step may judge own tokens, and hear a drafter's meanwhile."""
        SEEN["own tokens judged"] += bool(st.step) and st.box.name == NO_NAME
        SEEN["another draft beside own tokens"] += bool(st.came) and st.box.name == NO_NAME
        yield from super().end(st)


class DraftsHere(DraftsHereToo):
    """Nobody else drafts."""

    def _drawn(self, weight: float, st: State) -> Iterator[tuple[float, State]]:
        yield weight, st


ALLOWED = (
    *(Loop, Redrawn, WholeEachTime, SmallCredit, DraftsHere, DraftsHereToo),
    *(DrafterDies, VerifierDies, OrchestratorDies),
)
