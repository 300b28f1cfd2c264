"""The published client, connected to a service that plays a script."""

import os

import pytest
from paceline import Client, _patience
from paceline._servers import Servers

from tests.services.breaking_inference import Cluster, serving
from tests.services.fake_inference import FakeService


@pytest.fixture
def no_environment(monkeypatch):
    """What the environment says of our settings is forgotten."""
    for name in [name for name in os.environ if name.startswith("PACELINE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
async def service():
    return FakeService()


@pytest.fixture
async def client(service):
    async with serving(service) as (_, port), Client(f"127.0.0.1:{port}") as client:
        yield client


@pytest.fixture
def short_waits(monkeypatch):
    monkeypatch.setattr(_patience, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(_patience, "LONGEST_WAIT", 0.002)


@pytest.fixture
async def cluster():
    return Cluster()


@pytest.fixture
def waits(monkeypatch):
    """Pauses pass in no time; here is how long each would have been."""
    clock = Clock()
    monkeypatch.setattr(_patience, "monotonic", lambda: clock.now)
    monkeypatch.setattr(Servers, "pause", clock.pause)
    return clock.waits


class Clock:
    def __init__(self):
        self.now, self.waits = 1000.0, []

    async def pause(self, seconds):
        self.now += seconds
        self.waits.append(seconds)
