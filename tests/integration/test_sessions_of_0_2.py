"""What 0.2 stored of sessions is read, and goes on: a sample of its keys, with an open session."""

import base64
import json
from pathlib import Path

import redis.asyncio
from paceline import SessionStatus

from tests.integration.cluster import PATIENT, cluster
from tests.integration.known import known_verifier, text

SAMPLE = json.loads(Path(__file__).with_name("sessions_of_0_2.json").read_text("utf-8"))
"""By key: its kind, and its content in base64. Two greedy sessions of known text, with drafts."""


def raw(content: str) -> bytes:
    return base64.b64decode(content)


async def put(url: str) -> None:
    """The keys as they were, in a store of today; nobody holds their leases any more."""
    async with redis.asyncio.Redis.from_url(url) as store:
        for key, (kind, content) in SAMPLE.items():
            match kind:
                case "hash":
                    told = {raw(name): raw(value) for name, value in content.items()}
                    seconds, _ = await store.time()
                    await store.hset(key, mapping={**told, b"created_ms": 1000 * seconds})
                case "string":
                    await store.set(key, raw(content))
                case "stream":
                    for entry, fields in content:
                        told = {raw(name): raw(value) for name, value in fields.items()}
                        await store.xadd(key, told, id=entry)


async def test_an_ended_session_is_read_with_its_rounds_and_an_open_one_goes_on() -> None:
    async with cluster([await known_verifier()], [], PATIENT) as running:
        await put(running.redis.url)
        ended = await running.client.get_session("of-0.2", rounds=True)
        assert (ended.status, ended.committed_tokens) == (SessionStatus.FINISHED, 24)
        assert [token for one in ended.rounds for token in one.token_ids] == text(7, 24)
        assert sum(one.stats.draft_tokens for one in ended.rounds) > 0
        done = await running.client.resume("open-0.2")
        assert list(done.token_ids) == text(8, 400)
        whole = await running.client.get_session("open-0.2", rounds=True)
        assert {one.term for one in whole.rounds} == {1, 2}
        assert [token for one in whole.rounds for token in one.token_ids] == text(8, 400)
