"""A hub between sessions and links that note what they are told, and a loop that stands still."""

from itertools import count

from orchestrator.steering.hub import Hub
from services.contract.frames import (
    DraftName,
    DraftRow,
    Grants,
    StepEnd,
    StepFrame,
    StepRow,
    draft_frame,
    granted,
    step_frame,
)
from services.contract.types import DraftTree, ResolvedSampling, Role, VerifyMode
from services.contract.worker_messages import StartDraft

VOCAB = 1000
PLENTY = 10_000
WINDOW = 4


class NotedLinks:
    """Notes what is sent, by worker."""

    def __init__(self):
        self.sent, self.passed, self.released, self.cuts = [], [], [], []

    def send(self, worker, session, command):
        self.sent.append((worker, session, command))

    def forward(self, worker, command):
        self.passed.append((worker, command))

    def release(self, worker, session):
        self.released.append((worker, session))

    def cut(self, worker, reason):
        self.cuts.append((worker, reason))

    def frames(self, worker, kind=StepFrame):
        return [own for name, own in self.passed if name == worker and isinstance(own, kind)]

    def granted(self, worker):
        return [dict(granted(own)) for own in self.frames(worker, Grants)]


class Loop:
    """Time passes only when told to; callbacks are called then."""

    def __init__(self):
        self.now, self.cpu = 100.0, 0.0
        self.calls = []
        self._order = count()

    def call_soon(self, callback):
        self.call_later(0.0, callback)

    def call_later(self, delay, callback):
        self.calls.append((self.now + delay, next(self._order), callback))

    def run(self, seconds=0.0):
        end = self.now + seconds
        while due := [own for own in self.calls if own[0] <= end]:
            self.calls.remove(first := min(due))
            self.now = max(self.now, first[0])
            first[2]()
        self.now = end


class Noted:
    """A session that notes what it gets, in order."""

    def __init__(self):
        self.notes, self.on_note = [], lambda: None

    def took(self, worker, taken):
        self._note("took", worker, taken)

    def hear(self, worker, role, event):
        self._note("heard", worker, event)

    def lost(self, worker, role, reason):
        self._note("lost", worker, reason)

    def _note(self, *note):
        self.notes.append(note)
        self.on_note()

    @property
    def tokens(self):
        return [
            t
            for kind, _, own in self.notes
            if kind == "took"
            for one in own
            for t in one.row.tokens
        ]

    @property
    def kinds(self):
        return [note[0] for note in self.notes]


class World:
    """A hub, its links and loop, and sessions at verifier "v"."""

    def __init__(self, sessions=1, drafter="", verifier="v", links=None):
        self.loop, self.links = Loop(), links or NotedLinks()
        self.hub = Hub(
            self.links,
            self.loop,
            clock=lambda: self.loop.now,
            cpu=lambda: self.loop.cpu,
            wall_ns=lambda: int(self.loop.now * 1e9),
        )
        self.sessions, self.handles = [], []
        for _ in range(sessions):
            self.enter(drafter, verifier)

    def enter(self, drafter="", verifier="v", limit=PLENTY):
        session = Noted()
        handle = self.hub.enter(session, VOCAB)
        self.hub.verified_by(handle, verifier, 1, 0, limit, WINDOW)
        if drafter:
            self.drafts_at(handle, drafter)
        self.sessions.append(session)
        self.handles.append(handle)
        return handle

    def drafts_at(self, handle, drafter, opening=1, output=()):
        self.hub.drafted_by(handle, drafter)
        self.hub.send(drafter, start_draft(handle, opening, output))

    def step(self, *rows, worker="v", **facts):
        frame = step_frame(StepFrame(1, **facts), rows)
        self.hub.heard(worker, Role.VERIFIER, frame)
        self.loop.run()
        return frame

    def plain(self, position, token=7, worker="v"):
        """A step of one token for every session."""
        return self.step(
            *[StepRow(own, 1, position, (token,)) for own in self.handles], worker=worker
        )

    def drafted(self, *drafts, worker="d"):
        frame = draft_frame(drafts)
        self.hub.heard(worker, Role.DRAFTER, frame)
        return frame

    def busy(self, cost=1.0, periods=4):
        """Let steps cost so many seconds of CPU each, until the hub has seen it."""
        for position in range(40 * periods):
            self.loop.cpu += cost
            self.plain(position)
            self.loop.run(0.025)
        return 40 * periods


def start_draft(handle, opening=1, output=()):
    mode, sampling = VerifyMode.GREEDY, ResolvedSampling()
    return StartDraft(handle, opening, "s", 1, (1, 2), tuple(output), mode, sampling, 0, 8)


def draft(handle, position=0, tokens=(5, 6), opening=1, number=1):
    return DraftRow(handle, DraftName(opening, number), position, 17, DraftTree(tuple(tokens)))


def judged(handle, position, tokens, drafts, end=StepEnd.RECOVERED):
    """A step that judged a draft, whose own token is the last one where there is one."""
    accepted = len(tokens) - (end is not StepEnd.NONE)
    return StepRow(handle, 1, position, tokens, accepted, drafts, end=end, name=DraftName(1, 1))
