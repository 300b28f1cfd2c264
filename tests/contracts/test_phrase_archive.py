"""Outputs kept in Redis for the phrases of later drafters."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

import pytest
from fakeredis import FakeAsyncRedis
from redis.asyncio import Redis

from services.contract.errors import StartError
from services.contract.types import OpenDraft, ResolvedSampling, VerifyMode
from services.drafter.methods.ngram import archive as archive_module
from services.drafter.methods.ngram.archive import MOST_WAITING, RedisArchive
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.protocol import Ask
from services.runtime.redis_client import open_client
from tests.contracts.backends import Backend
from tests.waiting import until

SAID = tuple(range(11, 31))


@pytest.fixture
def archives(backend: Backend) -> Iterator[Callable[..., RedisArchive]]:
    """Makes archives on the backend; each thread has a client of its own."""
    made: list[RedisArchive] = []

    def client() -> Redis:
        return FakeAsyncRedis(server=backend.fake) if backend.fake else open_client(backend.url)

    def make(**options: float) -> RedisArchive:
        made.append(RedisArchive("redis://here", client=client, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for archive in made:
        archive.close()


def texts_of(archive: RedisArchive, scope: str, count: int) -> list[tuple[int, ...]]:
    """The outputs of a scope, once `count` of them are here."""
    archive.load(scope)
    found: list[tuple[int, ...]] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline
        kept = archive.arrived()
        if kept is None:
            time.sleep(0.005)
        else:
            assert kept[0] == scope
            found.append(tuple(kept[1]))
    return found


async def test_what_one_drafter_kept_another_one_gets_oldest_first(archives):
    first = archives()
    first.keep("a", [1, 2, 4_294_967_295])
    first.keep("b", [9, 9])
    first.keep("a", [3, 4])
    first.close()
    second = archives()
    assert texts_of(second, "a", 2) == [(1, 2, 4_294_967_295), (3, 4)]
    assert second.arrived() is None


async def test_a_scope_holds_a_bounded_number_of_bounded_texts_and_expires(archives, backend):
    archive = archives(most_texts=2, most_tokens=3, ttl_s=50.0)
    for start in (10, 20, 30):
        archive.keep("a", range(start, start + 5))
    archive.close()
    assert texts_of(archives(), "a", 2) == [(22, 23, 24), (32, 33, 34)]
    (key,) = await backend.keys()
    assert key == b"paceline:phrases:a"
    assert 40_000 < await backend.client().pttl(key) <= 50_000


async def test_a_record_of_another_kind_is_passed_over(archives, backend):
    await backend.client().rpush("paceline:phrases:a", b"12345", b"", b"\x07\0\0\0\x08\0\0\0")
    assert texts_of(archives(), "a", 1) == [(7, 8)]


def opening(scope: str) -> OpenDraft:
    return OpenDraft((1,), VerifyMode.GREEDY, ResolvedSampling(), 0, phrase_scope=scope)


def drafted(drafter: NgramDrafter, session: str, scope: str, output: tuple[int, ...]) -> list[int]:
    """Open a session, show its output, and say what is drafted after it."""
    key = (0, session)
    drafter.open(key, opening(scope))
    text = (1, *output)
    (proposed,) = drafter.propose([Ask(key, 1, text, 1, len(text), room=4)])
    return list(proposed.tree.token_ids)


async def test_a_drafter_that_starts_drafts_what_an_earlier_one_heard(archives):
    early = archives()
    drafter = NgramDrafter(archive=early)
    for scope in ("acme", ""):
        drafted(drafter, "s1", scope, SAID)
        drafter.close((0, "s1"))
    early.close()
    late = NgramDrafter(archive=archives())
    await until(lambda: drafted(late, "s2", "acme", SAID[:4]) == list(SAID[4:8]))
    assert drafted(late, "s3", "other", SAID[:4]) == drafted(late, "s4", "", SAID[:4]) == []


async def test_a_session_without_a_scope_is_never_written(archives, backend):
    archive = archives()
    drafter = NgramDrafter(archive=archive)
    drafted(drafter, "s1", "", SAID)
    drafter.close((0, "s1"))
    archive.close()
    assert await backend.keys() == []


def many_sessions(archive: RedisArchive) -> None:
    """More than may wait for Redis are drafted for, and kept."""
    drafter = NgramDrafter(archive=archive)
    for number in range(2 * MOST_WAITING):
        drafted(drafter, f"s{number}", "acme", SAID)
        drafter.close((0, f"s{number}"))


class Silent(FakeAsyncRedis):
    """Takes every command, and answers none."""

    async def execute_command(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()


def test_nobody_waits_for_a_redis_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(archive_module, "_FLUSH_S", 0.1)
    archive = RedisArchive("redis://here", client=Silent)
    many_sessions(archive)
    archive.close()
    assert archive.arrived() is None


def test_a_redis_that_is_away_costs_nothing_but_one_line(caplog):
    archive = RedisArchive("redis://:secret@127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        many_sessions(archive)
        archive.close()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["phrases are not kept: Redis at redis://127.0.0.1:1: ConnectionError"]


def test_a_url_that_says_nothing_stops_the_start():
    with pytest.raises(StartError, match="is not usable"):
        RedisArchive("nonsense")
