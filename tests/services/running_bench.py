"""A verifier core that runs its sessions, on a table: commands in, events out, and their texts."""

import torch

from services.contract import types as t
from services.contract.frames import (
    DraftName,
    DraftRow,
    StepFrame,
    draft_frame,
    grants,
    step_rows,
)
from services.contract.types import EMPTY_HASH, extend_hash
from services.contract.worker_messages import StartVerify
from services.engine.sampling import RowContext, choose
from services.scheduling.offers import Allotment
from services.verifier.options import VerifierOptions
from services.verifier.running.core import RunningCore
from tests.fake_engine import VOCAB, FakeEngine, law

torch.set_num_threads(1)
GREEDY, COUPLED = EXACT = (t.VerifyMode.GREEDY, t.VerifyMode.COUPLED)
PROMPT = (1, 2, 3, 4, 5)
FREE = 1000
"""A limit that is never reached."""
_OWN = set(StartVerify.__slots__)


def start(handle=1, mode=GREEDY, prompt=PROMPT, output=(), **more):
    """A StartVerify; sampling parameters may be given by their names."""
    own = {name: more.pop(name) for name in list(more) if name in _OWN}
    own = {
        "opening": 1,
        "term": 1,
        "seed": 9,
        "window": 8,
        "limit": FREE,
        "drafted_for": True,
    } | own
    sampling = t.ResolvedSampling(**({"max_tokens": 40} | more))
    return StartVerify(
        handle=handle,
        session_id=f"s{handle}",
        prompt=prompt,
        output=output,
        mode=mode,
        sampling=sampling,
        **own,
    )


def draft(tokens, before=(), number=1, handle=1, opening=1, tree=None, **more):
    """A frame of one draft behind an output."""
    hashed = extend_hash(EMPTY_HASH, before)
    tree = tree or t.DraftTree(tuple(tokens))
    name = DraftName(opening, number)
    return draft_frame([DraftRow(handle, name, len(before), hashed, tree, **more)])


def limit(tokens, handle=1):
    return grants([(handle, tokens)])


def other(token):
    return (token + 1) % VOCAB


def text_of(command, count, next_logits=law):
    """What the target alone says to a StartVerify, token by token."""
    text = list(command.prompt)
    for position in range(count):
        context = RowContext(command.mode, command.sampling, command.seed, position)
        text += choose(torch.stack([next_logits(text)]), [context])
    return tuple(text[len(command.prompt) :])


TEXT = text_of(start(), 40)


class Fixed:
    """A policy that verifies all that is held, up to the window, and holds nobody back."""

    def allot(self, offers):
        return [Allotment(min(own.tokens, own.window)) for own in offers]

    def judged(self, own):
        pass

    def drafted(self, key, tokens, ms, final):
        pass

    def advanced(self, key, tokens, seconds):
        pass

    def stepped(self, sessions, extra, ms):
        pass

    def window(self, _, most):
        return most

    def forget(self, key):
        pass


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Timed(FakeEngine):
    """A forward takes `base_ms` and `row_ms` for each of its rows, on the engine's own clock."""

    def __init__(self, base_ms, row_ms):
        super().__init__()
        self.now, self._base_ms, self._row_ms = 0.0, base_ms, row_ms

    def clock(self):
        """Seconds."""
        return self.now

    def forward(self, segments):
        out = super().forward(segments)
        self.now += 1e-3 * (self._base_ms + self._row_ms * sum(self.forwards[-1]))
        return out


class Running:
    """One core and its events; `during` is handed in behind the next forwards, one list each."""

    def __init__(self, engine=None, pacing=None, proposer=None, **options):
        self.engine = engine or FakeEngine()
        self.clock = Clock()
        self.events = []
        self.during = []
        self.core = RunningCore(
            self.engine,
            emit=lambda link, event: self.events.append((link, event)),
            worker_id="v",
            options=VerifierOptions(**({"clock": self.clock} | options)),
            pacing=pacing or Fixed(),
            proposer=proposer,
            absorb=self._absorb,
        )
        self.outputs, self.given = {}, {}

    def _absorb(self):
        self.give(*(self.during.pop(0) if self.during else ()))

    def give(self, *commands, link=1):
        for command in commands:
            if isinstance(command, StartVerify):
                self.given[link, command.handle, command.opening] = command.output
            self.core.handle(link, command)

    def run(self, *commands, link=1, steps=10_000):
        """Hand commands in, step until idle, take the events of all links."""
        self.give(*commands, link=link)
        for _ in range(steps):
            if not self.core.step():
                break
        else:
            assert steps < 10_000, "the core never rests"
        return self.taken()

    def step(self, *commands, link=1):
        """Hand commands in and take one step; the rows of its frames."""
        return self.rows_of(self.run(*commands, link=link, steps=1))

    def rows_of(self, events):
        """The rows of the frames among some events."""
        return [row for event in events if isinstance(event, StepFrame) for row in step_rows(event)]

    def taken(self):
        """The events, whose tokens are put together by session and opening."""
        taken, self.events = self.events, []
        for link, event in taken:
            if isinstance(event, StepFrame):
                for row in step_rows(event):
                    key = (link, row.handle, row.opening)
                    self.outputs.setdefault(key, self.given.get(key, ()))
                    assert row.position == len(self.outputs[key])
                    self.outputs[key] += row.tokens
        return [event for _, event in taken]

    def output(self, handle=1, link=1, opening=1):
        return self.outputs.get((link, handle, opening), ())


def of_kind(kind, events):
    return [event for event in events if isinstance(event, kind)]


def only(kind, events):
    [found] = of_kind(kind, events)
    return found
