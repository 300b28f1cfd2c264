"""Whatever bytes a store holds, reading them is an answer or one clear error."""

import asyncio
from itertools import count

import pytest
from fakeredis import FakeServer
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.session.ports import SessionKey
from services.contract.errors import DataLoss, PacelineError, StoreError
from tests.contracts.backends import KEY, NEW, Backend, begun
from tests.tries import tries

FIELDS = (
    "version", "status", "term", "owner", "digest", "target_fingerprint", "prompt", "prompt_len",
    "committed_len", "seed", "ephemeral", "finish_reason", "matched_stop", "created_ms",
    "lease_ms", "lease_until_ms", "ttl_ms", "round", "round_base", "acquired_by", "relaxed",
)  # fmt: skip
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.sampled_from([b"", b"-1", b"1e999", b"nan", b"9" * 5000, b"18446744073709551616", b"0x10"]),
)


async def keys_of(backend: Backend) -> dict[str, bytes]:
    return {key.decode().rpartition(":")[2]: key for key in await backend.keys()}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("owner", None),
        ("status", b"busy"),
        ("term", b"many"),
        ("term", b"99999999999"),
        ("seed", b"18446744073709551616"),
        ("prompt", b"\x01\x02\x03"),
        ("prompt_len", b"7"),
        ("digest", b"\xff\xfe"),
        ("version", b"\xff"),
        ("finish_reason", b"boredom"),
        ("matched_stop", b"token:x"),
    ],
    ids=str,
)
async def test_a_malformed_record_is_one_error_and_no_more(store, backend, field, value):
    await begun(store, 7)
    client, meta = backend.client(), (await keys_of(backend))["meta"]
    await (client.hset(meta, field, value) if value is not None else client.hdel(meta, field))
    with pytest.raises(DataLoss, match="malformed"):
        await store.get(KEY)
    assert (await store.create(SessionKey("acme", "s-2"), NEW)).created


async def test_a_length_that_is_not_the_text_s_is_one_error_and_no_more(store, backend):
    await begun(store, 7)
    await backend.client().hset((await keys_of(backend))["meta"], "committed_len", b"7")
    with pytest.raises(DataLoss, match="1 of its 7 tokens"):
        await store.get(KEY)


async def test_a_text_that_was_cut_is_one_error_and_no_more(store, backend):
    await begun(store, 7, 8)
    await backend.client().set((await keys_of(backend))["tokens"], b"\x07\x00\x00\x00\x08")
    with pytest.raises(DataLoss, match="1 of its 2 tokens"):
        await store.get(KEY)
    with pytest.raises(DataLoss, match="1 of its 2 tokens"):
        await store.acquire(KEY, "o2")


async def test_a_key_of_another_kind_is_one_error_and_no_more(store, backend):
    await store.create(KEY, NEW)
    meta = (await keys_of(backend))["meta"]
    await backend.client().delete(meta)
    await backend.client().lpush(meta, "x")
    for asked in (store.get(KEY), store.create(KEY, NEW), store.abort(KEY)):
        with pytest.raises(StoreError):
            await asked
    assert (await store.create(SessionKey("acme", "s-2"), NEW)).created


async def use(store, backend: Backend, key: SessionKey, field: str, value: bytes | None) -> None:
    """Everything that is ever done to a session, with one field of it overwritten."""
    await store.create(key, NEW)
    await store.commit(key, 1, 1, 0, [7])
    client = backend.client()
    meta = f"paceline:{{{key.tenant}/{key.session_id}}}:meta"
    await (client.hset(meta, field, value) if value is not None else client.hdel(meta, field))
    calls = [(store.get,), (store.commit, 1, 2, 1, [8]), (store.create, NEW), (store.rounds,)]
    calls += [(store.pause, 1), (store.acquire, "o2"), (store.abort,)]
    for call, *more in calls:
        [answer] = await asyncio.gather(call(key, *more), return_exceptions=True)
        if isinstance(answer, BaseException):
            assert isinstance(answer, PacelineError)
            assert len(str(answer)) < 200


def test_no_bytes_in_a_record_end_the_store():
    backend, examples = Backend(fake=FakeServer()), count()
    with asyncio.Runner() as runner:
        store = runner.run(backend.store())

        @tries(60)
        @given(st.sampled_from(FIELDS), VALUES)
        def survive(field, value):
            runner.run(use(store, backend, SessionKey("acme", str(next(examples))), field, value))

        survive()
        runner.run(_still_serves(store, backend))


async def _still_serves(store, backend: Backend) -> None:
    assert (await store.create(KEY, NEW)).created
    await backend.close()
