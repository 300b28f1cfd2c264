"""Who answers in the demo without drafts."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from services.console import demo


@pytest.fixture
def started(monkeypatch):
    """The clusters that were started for it."""
    made = []

    @asynccontextmanager
    async def served(_console, options):
        made.append(options)
        yield "alone", None

    monkeypatch.setattr(demo, "_served", served)
    return made


async def plain(**options):
    cluster = demo.DemoOptions(**options).cluster
    async with demo._plain(None, cluster, "same") as client:
        return client


@pytest.mark.parametrize("draft", [None, ""])
async def test_it_is_the_same_verifier_which_has_every_core(started, draft):
    assert await plain(draft=draft) == "same"
    assert started == []
    assert demo.DemoOptions(draft=draft).cluster.core_plan((0, 1)).verifiers == ((0, 1),)


async def test_beside_a_draft_model_it_is_a_verifier_with_every_core(started):
    assert await plain(draft="small") == "alone"
    [options] = started
    assert (options.draft, options.drafters) == (None, 0)
    assert options.core_plan((0, 1)).verifiers == ((0, 1),)
