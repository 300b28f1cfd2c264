"""A rollout under traffic: every tier is replaced by new processes.

Both run side by side on one store. New workers come first, then their orchestrator; the old one
drains, its clients resume at the new one, and the old workers leave.
"""

import asyncio
import json
from pathlib import Path

import pytest

from testkit.chaos.health import left_behind, whole
from testkit.chaos.listener import Listener, until
from testkit.chaos.member import Member
from testkit.chaos.run import undisturbed
from testkit.chaos.site import DRAFTER, ORCHESTRATOR, ROLES, VERIFIER, Cluster, Layout
from testkit.chaos.transcript import Case

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

SESSIONS, TOKENS, HEARD = 24, 1000, 20
TIMES = {
    "verifier": {"plain_ms": 12.0, "verify_ms": 13.0},
    "drafter": {"draft_ms": 2.0},
    "agreement": {"rate": 0.7},
}
"""In milliseconds: sessions run well beyond the start of three processes."""
GREEDY = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, "include_rounds": True}
CASES = [Case(f"world {number}", GREEDY) for number in range(SESSIONS)]


async def test_every_tier_is_replaced_while_sessions_run(tmp_path: Path):
    times = tmp_path / "times.json"
    times.write_text(json.dumps(TIMES))
    layout = Layout(synthetic=str(times), verifiers=1, drafters=1, orchestrators=1)
    with Cluster(layout) as cluster:
        await whole(cluster)
        texts = await undisturbed(cluster, CASES)
        leaving = list(cluster.members)
        coming = [cluster.add(role, f"next-{role}") for role in ROLES]
        async with cluster.client() as client:
            sessions = [Listener(f"session-{n}", case).ask(client) for n, case in enumerate(CASES)]
            for session in sessions:
                await session.until(HEARD)
            await replace(cluster, leaving, coming, sessions)
            for session in sessions:
                await session.end()
        pairs = zip(sessions, texts, strict=True)
        assert [line for one, text in pairs for line in one.differences(text)] == []
        both = {"verifier-1", "next-verifier"}
        assert all(one.transcript.verifiers == both for one in sessions)
        assert any("next-drafter" in one.transcript.drafters for one in sessions)
        assert await left_behind(cluster) == []


async def replace(
    cluster: Cluster, leaving: list[Member], coming: list[Member], sessions: list[Listener]
) -> None:
    """Start what comes, workers first; end what leaves, orchestrators first, with its status."""
    for member in coming:
        member.start()
        await until(lambda member=member: member.serves)
    await linked(cluster, [*leaving, *coming])
    assert all(session.running for session in sessions)
    for member in reversed(leaving):
        assert await asyncio.to_thread(member.end, 120) == 0
        cluster.members.remove(member)
    assert all(session.running for session in sessions)


async def linked(cluster: Cluster, members: list[Member]) -> None:
    """Wait until each orchestrator among these has links to all workers among them."""
    workers = {one.name for one in members if one.role in (VERIFIER, DRAFTER)}
    for one in members:
        if one.role == ORCHESTRATOR:
            async with cluster.client(one.address) as client, asyncio.timeout(60):
                while {w.worker_id for w in (await client.server_info()).workers} != workers:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
