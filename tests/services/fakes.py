"""A worker core that models nothing: it answers each verify and counts; and who hears it."""

import asyncio
import threading

from services.contract import types as t


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
    """Answers a block with its own tokens; a block of token 666 makes it crash."""

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
            case t.OpenVerify(session=session, epoch=epoch):
                self.sessions.add((link, session))
                self.emit(link, t.VerifyOpened(session, epoch))
            case t.OpenDraft(session=session, epoch=epoch):
                self.sessions.add((link, session))
                self.emit(link, t.DraftOpened(session, epoch))
            case t.Verify() if (link, command.session) in self.sessions:
                self.waiting.append((link, command))
            case t.Verify(session=session):
                self.emit(link, t.SessionFailed(session, t.FailureReason.UNKNOWN_SESSION))
            case t.CloseVerify(session):
                self.sessions.discard((link, session))

    def step(self):
        self.gate.wait()
        taken, self.waiting = self.waiting, []
        for link, block in taken:
            if block.tree.token_ids == (666,):
                raise RuntimeError("the core is broken")
            place, tokens = (block.round, block.base_len), block.tree.token_ids
            self.emit(link, t.Verdict(block.session, block.epoch, *place, tokens, len(tokens)))
        return bool(taken)

    def drop_link(self, link):
        self.sessions = {key for key in self.sessions if key[0] != link}

    def progress(self):
        return t.Progress(sessions=len(self.sessions), queued_tokens=len(self.waiting))

    def describe(self):
        return t.WorkerDescription("w1", self.role, methods=("ngram",))


def open_verify(session="s"):
    return t.OpenVerify(
        session, 1, 1, (1, 2), (), t.VerifyMode.GREEDY, t.ResolvedSampling(), seed=0, window=4
    )


def block(*tokens, session="s", round=1):
    return t.Verify(session, 1, round, 0, t.DraftTree(tokens))
