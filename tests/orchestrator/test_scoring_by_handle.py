"""The same scores in protocol 2, where sessions have handles."""

import asyncio

import pytest

from orchestrator.frontdoor.scoring import Scoring
from orchestrator.steering.hub import Hub
from services.contract import worker_messages
from services.contract.types import PromptScores, Role, SessionFailed, VerifyOpened
from tests.orchestrator.test_scoring import *  # noqa: F403
from tests.orchestrator.test_scoring import LIMITS, Verifiers


class ByHandle(Verifiers):
    """The same in protocol 2, where sessions have handles and steps come through a hub."""

    def __init__(self, say, names=("v1", "v2")):
        super().__init__(say, names)
        self.hub = Hub(self)
        self.scoring = Scoring(self, LIMITS, self.hub)

    def send(self, worker, session, command):
        self.opened.append((worker, command))
        for event in self.say(len(self.opened), session):
            call = asyncio.get_running_loop().call_soon
            if isinstance(event, str):
                call(self.hub.lost, worker, Role.VERIFIER, [session], event)
            else:
                call(self.hub.heard, worker, Role.VERIFIER, by_handle(event))

    def release(self, worker, session):
        if (worker, session) not in self.released:
            self.released.append((worker, session))


def by_handle(event):
    match event:
        case PromptScores():
            return worker_messages.PromptScores(event.session, 1, event.position, event.rows)
        case VerifyOpened():
            return worker_messages.SessionStarted(event.session, 1)
        case SessionFailed():
            return worker_messages.SessionGone(event.session, 1, event.reason, event.message)


@pytest.fixture
def cluster():
    return ByHandle
