"""Real processes behind proxies, streams through them, and what their texts must be."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from testkit.chaos.health import whole
from testkit.chaos.models import tiny_models
from testkit.chaos.run import undisturbed
from testkit.chaos.site import Cluster, Layout
from tests.faults.kit import CASES, Site

MakeSite = Callable[[Layout], AbstractContextManager[Site]]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A tiny target, and a draft model that agrees with it about half the time."""
    return tiny_models(Path(tmp_path_factory.mktemp("models")))


@contextmanager
def served(layout: Layout) -> Iterator[Site]:
    """A cluster, and what it says while nothing disturbs it."""
    with Cluster(layout) as cluster:
        asyncio.run(whole(cluster))
        yield Site(cluster, asyncio.run(undisturbed(cluster, CASES)))


@pytest.fixture
async def site(shared: Site) -> Site:
    """The file's cluster, whole again whatever the test before did."""
    await shared.repair()
    return shared
