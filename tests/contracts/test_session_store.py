"""What every session store must do, whatever server is behind it."""

import asyncio
from dataclasses import replace

import pytest
from redis.crc import key_slot

from orchestrator.session.ports import Call, Created, SessionKey, StoredRound
from orchestrator.store import StoreOptions
from orchestrator.store.codec import keys_of
from services.contract.errors import AlreadyExists, DataLoss, Fenced, NotFound, StoreError
from services.contract.types import FinishReason, SessionStatus
from tests.contracts.backends import KEY, NEW, begun


async def test_a_session_comes_back_as_it_was_stored(store):
    assert await store.create(KEY, NEW) == Created(True, 1)
    assert await store.commit(KEY, 1, 1, 0, [7, 0, 4_294_967_295]) == 3
    stored = await store.get(KEY)
    assert stored.resolved == NEW.resolved
    assert (stored.digest, stored.target_fingerprint) == ("d1", "f1")
    assert (stored.prompt, stored.prompt_len) == (NEW.prompt, 3)
    assert (stored.committed, stored.committed_len) == ((7, 0, 4_294_967_295), 3)
    assert (stored.seed, stored.term, stored.owner) == (2**64 - 1, 1, "o1")
    assert (stored.finish_reason, stored.matched_stop, stored.ephemeral) == (None, None, False)
    assert stored.lease_until_ms >= stored.created_ms > 0


async def test_an_equal_request_attaches(store):
    await store.create(KEY, NEW)
    again = await store.create(KEY, replace(NEW, owner="o2", seed=1))
    assert again == Created(False, 1)
    assert (await store.get(KEY)).seed == NEW.seed


async def test_an_equal_request_finds_the_finished_session(store):
    await store.create(KEY, NEW)
    await store.finish(KEY, 1, 0, FinishReason.LENGTH)
    assert not (await store.create(KEY, NEW)).created
    assert (await store.look(KEY)).status is SessionStatus.FINISHED


async def test_another_request_under_the_same_id_is_refused(store):
    await store.create(KEY, NEW)
    with pytest.raises(AlreadyExists):
        await store.create(KEY, replace(NEW, digest="d2", prompt=(1,)))
    assert (await store.get(KEY)).prompt == NEW.prompt


async def test_two_tenants_do_not_share_an_id(store):
    other = SessionKey("umbrella", KEY.session_id)
    await store.create(KEY, NEW)
    with pytest.raises(NotFound):
        await store.get(other)
    with pytest.raises(NotFound):
        await store.abort(other)
    assert (await store.create(other, replace(NEW, digest="d2"))).created
    await store.commit(other, 1, 1, 0, [9])
    assert (await store.get(KEY)).committed == ()


async def test_names_that_read_alike_joined_stay_apart(store):
    pairs = [("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c"), ("", "a/b/c"), ("a}", "{b"), ("a}{b", "")]
    for tenant, session_id in pairs:
        assert (await store.create(SessionKey(tenant, session_id), NEW)).created


@pytest.mark.parametrize("tenant", ["acme", "", "a}", "{", "}{", "é"])
def test_all_keys_of_a_session_live_in_one_cluster_slot(tenant):
    keys = keys_of("paceline:", SessionKey(tenant, "s-1"))
    assert len({key_slot(key.encode()) for key in keys}) == 1
    assert len(set(keys)) == 3


@pytest.mark.parametrize("ask", ["get", "abort", "acquire"])
async def test_an_unknown_session_is_not_found(store, ask):
    with pytest.raises(NotFound):
        await getattr(store, ask)(KEY, *(["o1"] if ask == "acquire" else []))


async def test_acquire_takes_the_next_term_even_over_a_live_lease(store):
    await begun(store, 7, 8)
    taken = await store.acquire(KEY, "o2")
    assert (taken.term, taken.owner, taken.committed) == (2, "o2", (7, 8))
    assert (taken.prompt, taken.resolved, taken.seed) == (NEW.prompt, NEW.resolved, NEW.seed)
    assert (await store.acquire(KEY, "o3")).term == 3


async def test_the_old_owner_is_fenced_at_its_next_write(store):
    await store.create(KEY, NEW)
    await store.acquire(KEY, "o2")
    with pytest.raises(Fenced):
        await store.commit(KEY, 1, 1, 0, [7])
    with pytest.raises(Fenced):
        await store.finish(KEY, 1, 0, FinishReason.STOP)
    with pytest.raises(Fenced):
        await store.pause(KEY, 1)
    assert await store.commit(KEY, 2, 1, 0, [8]) == 1
    assert (await store.get(KEY)).committed == (8,)


async def test_rounds_count_anew_in_every_term(store):
    await store.create(KEY, NEW)
    await store.commit(KEY, 1, 5, 0, [7])
    await store.acquire(KEY, "o2")
    assert await store.commit(KEY, 2, 1, 1, [8]) == 2


async def test_a_repeated_round_changes_nothing(store):
    await begun(store, 7, 8)
    await store.commit(KEY, 1, 3, 2, [9])
    assert await store.commit(KEY, 1, 3, 2, [9]) == 3
    assert await store.commit(KEY, 1, 1, 0, [7, 8]) == 2
    assert (await store.get(KEY)).committed == (7, 8, 9)
    assert len(await store.rounds(KEY)) == 2


@pytest.mark.parametrize(
    ("base_len", "tokens"),
    [(0, [9]), (1, [8]), (2, [8]), (2, [9, 9]), (3, [9]), (3, []), (4, [])],
    ids=str,
)
async def test_a_round_cannot_be_repeated_with_other_content(store, base_len, tokens):
    await begun(store, 7, 8)
    await store.commit(KEY, 1, 2, 2, [9])
    with pytest.raises(StoreError):
        await store.commit(KEY, 1, 2, base_len, tokens)
    assert (await store.get(KEY)).committed == (7, 8, 9)


async def test_a_commit_must_follow_the_text(store):
    await begun(store, 7, 8)
    with pytest.raises(StoreError):
        await store.commit(KEY, 1, 2, 1, [9])
    with pytest.raises(DataLoss):
        await store.commit(KEY, 1, 2, 3, [9])
    assert (await store.get(KEY)).committed == (7, 8)


async def test_a_round_without_tokens_is_recorded(store):
    await store.create(KEY, NEW)
    assert await store.commit(KEY, 1, 1, 0, []) == 0
    assert await store.commit(KEY, 1, 2, 0, [7], b"\x00stats\xff") == 1
    assert await store.rounds(KEY) == (
        StoredRound(1, 1, 0, 0, b""),
        StoredRound(1, 2, 0, 1, b"\x00stats\xff"),
    )


async def test_a_store_that_forgot_an_acquire_is_noticed(store):
    await store.create(KEY, NEW)
    with pytest.raises(DataLoss):
        await store.commit(KEY, 2, 1, 0, [7])


async def test_a_missing_session_takes_no_commit(store):
    with pytest.raises(DataLoss):
        await store.commit(KEY, 1, 1, 0, [7])
    with pytest.raises(NotFound):
        await store.get(KEY)


async def test_the_stream_of_rounds_is_bounded(backend):
    store = await backend.store(StoreOptions(rounds_kept=10))
    await store.create(KEY, NEW)
    await asyncio.gather(*(store.commit(KEY, 1, r + 1, r, [r]) for r in range(500)))
    kept = await store.rounds(KEY)
    assert 10 <= len(kept) <= 200
    assert kept[-1].round == 500
    assert (await store.get(KEY)).committed == tuple(range(500))


async def test_a_record_of_a_newer_version_is_not_taken_over(store, backend):
    await store.create(KEY, NEW)
    meta = next(key for key in await backend.keys() if key.endswith(b"meta"))
    await backend.client().hset(meta, "version", "2")
    for ask in (store.acquire(KEY, "o2"), store.get(KEY)):
        with pytest.raises(StoreError, match="newer"):
            await ask
    assert await backend.client().hget(meta, "term") == b"1"


async def test_prefixes_keep_two_clusters_apart(backend):
    one, two = [await backend.store(StoreOptions(prefix=prefix)) for prefix in ("a:", "b:")]
    await one.create(KEY, NEW)
    with pytest.raises(NotFound):
        await two.get(KEY)


# --- calls that are carried out late ------------------------------------------------


FIRST, SECOND, THIRD = (Call("reader", number) for number in (1, 2, 3))


REFUSED = 0
LATE: dict[str, tuple[Call, list[tuple[str, Call | None, int]]]] = {
    "an earlier call of the same reader is refused and fences nobody": (
        FIRST,
        [("o2", THIRD, 2), ("o3", SECOND, REFUSED)],
    ),
    "a call repeated is served again": (FIRST, [("o2", FIRST, 2), ("o3", FIRST, 3)]),
    "another reader takes over whatever its number and the first may come back": (
        THIRD,
        [("o2", Call("other", 1), 2), ("o1", Call("reader", 4), 3)],
    ),
    "an earlier call is refused also after another reader took over": (
        FIRST,
        [("o2", THIRD, 2), ("o1", Call("other", 1), 3), ("o3", SECOND, REFUSED)],
    ),
    "who does not say which call it is takes over as ever": (SECOND, [("o2", None, 2)]),
}
"""The call that made the session; who takes it over by which one, and in which term."""


@pytest.mark.parametrize(("made", "taken"), LATE.values(), ids=LATE)
async def test_of_calls_that_are_carried_out_late(store, made, taken):
    await store.create(KEY, NEW, made)
    for owner, call, term in taken:
        if term is REFUSED:
            before = await store.get(KEY)
            with pytest.raises(Fenced):
                await store.acquire(KEY, owner, call)
            after = await store.get(KEY)
            assert (after.term, after.owner) == (before.term, before.owner)
        else:
            assert (await store.acquire(KEY, owner, call)).term == term


async def test_of_many_readers_the_latest_are_remembered(backend, store):
    await store.create(KEY, NEW, Call("reader-0", 2))
    for number in range(1, 40):
        await store.acquire(KEY, "o2", Call(f"reader-{number}", 2))
    assert len(await backend.client().hget(f"paceline:{{{KEY.name}}}:meta", "reader_calls")) < 400
    with pytest.raises(Fenced):
        await store.acquire(KEY, "o3", Call("reader-30", 1))


async def test_a_call_that_the_owner_serves_counts_like_one_that_took_over(store):
    await store.create(KEY, NEW, FIRST)
    assert await store.attend(KEY, 1, THIRD) == 1
    with pytest.raises(Fenced):
        await store.acquire(KEY, "o2", SECOND)


async def test_who_is_no_owner_any_more_notes_nothing(store):
    await store.create(KEY, NEW, FIRST)
    await store.acquire(KEY, "o2", SECOND)
    assert await store.attend(KEY, 1, Call("reader", 9)) == 2
    assert (await store.acquire(KEY, "o3", THIRD)).term == 3


async def test_an_earlier_call_is_not_noted_over_a_later_one(store):
    await store.create(KEY, NEW, THIRD)
    await store.attend(KEY, 1, FIRST)
    with pytest.raises(Fenced):
        await store.acquire(KEY, "o2", SECOND)


async def test_a_session_that_is_gone_has_nobody_to_note(backend, store):
    assert await (await backend.store()).attend(KEY, 1, FIRST) == 0
    assert not await backend.keys()
