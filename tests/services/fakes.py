"""A worker core that models nothing: it answers each draft and counts; and who hears it."""

import asyncio
import threading

from services.contract import types as t
from services.contract import worker_messages as w
from services.contract.frames import (
    DraftFrame,
    DraftName,
    DraftRow,
    StepEnd,
    StepFrame,
    StepRow,
    draft_frame,
    draft_rows,
    step_frame,
)


class Sink:
    """Collects what a link would send, and how it was delivered."""

    def __init__(self):
        self.batches = []
        self.closed = []
        self.changed = asyncio.Event()

    def put(self, events):
        self.batches.append(list(events))
        self.changed.set()

    def close(self, error=None):
        self.closed.append(error)
        self.changed.set()

    @property
    def events(self):
        return [event for batch in self.batches for event in batch]

    async def until(self, count):
        async with asyncio.timeout(60):
            while len(self.events) < count:
                self.changed.clear()
                await self.changed.wait()


class FakeCore:
    """Answers a draft with its own tokens; a draft of token 666 makes it crash."""

    def __init__(self, emit, role=t.Role.VERIFIER):
        self.emit = emit
        self.role = role
        self.sessions = set()
        self.waiting = []
        self.handled = []
        self.gate = threading.Event()
        self.gate.set()

    def patience(self):
        return 0.0

    def handle(self, link, command, arrived=0.0):
        self.handled.append((link, command))
        match command:
            case w.StartVerify(handle=handle, opening=opening):
                self.sessions.add((link, handle))
                self.emit(link, w.SessionStarted(handle, opening))
            case w.StartDraft(handle=handle, opening=opening):
                self.sessions.add((link, handle))
                self.emit(link, w.SessionStarted(handle, opening))
            case DraftFrame():
                self.waiting += [(link, row) for row in draft_rows(command)]
            case w.EndSession(handle):
                self.sessions.discard((link, handle))

    def step(self):
        self.gate.wait()
        taken, self.waiting = self.waiting, []
        for link, row in taken:
            if row.tree.token_ids == (666,):
                raise RuntimeError("the core is broken")
            self.emit(link, _answer(row))
        return bool(taken)

    def drop_link(self, link):
        self.sessions = {key for key in self.sessions if key[0] != link}

    def progress(self):
        return t.Progress(sessions=len(self.sessions), queued_tokens=len(self.waiting))

    def describe(self):
        return t.WorkerDescription("w1", self.role, methods=("ngram",))


def _answer(row):
    """The step in which all tokens of a draft were accepted, or one came without a draft."""
    tokens, end = row.tree.token_ids, StepEnd.NONE
    if not tokens:
        tokens, end = (7,), StepEnd.BONUS
    accepted = tokens if end is StepEnd.NONE else ()
    own = StepRow(row.handle, 1, 0, tokens, len(accepted), accepted, (), end, row.name)
    return step_frame(StepFrame(1), [own])


def start(handle=1):
    return w.StartVerify(
        handle, 1, "s", 1, (1, 2), (), 9, t.VerifyMode.GREEDY, t.ResolvedSampling(), 0, 4
    )


def draft(*tokens, handle=1, number=1):
    row = DraftRow(handle, DraftName(1, number), 0, t.EMPTY_HASH, t.DraftTree(tokens))
    return draft_frame([row])
