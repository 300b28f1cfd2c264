"""Which verifier computed a text's beginning, as far as this orchestrator remembers."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.workers.placement import Wanted
from orchestrator.workers.pool import WorkerPool
from orchestrator.workers.prefix_affinity import CHUNK, PrefixAffinity, chunks_of
from services.contract.types import Role

SYSTEM = list(range(1000, 1000 + 3 * CHUNK))
CHAT = [*SYSTEM, *range(CHUNK + 5)]


def test_a_text_is_looked_for_where_most_of_its_beginning_was_computed():
    texts = PrefixAffinity()
    texts.note(chunks_of("acme", [*SYSTEM, 1, 2, 3]), "a")
    texts.note(chunks_of("acme", CHAT), "b")
    assert texts.find(chunks_of("acme", [*CHAT, *range(200)])) == "b"
    assert texts.find(chunks_of("acme", CHAT[: 4 * CHUNK])) == "b"
    # The system prompt itself was computed by both, by b last.
    assert texts.find(chunks_of("acme", [*SYSTEM, 7, 7, 7])) == "b"
    texts.note(chunks_of("acme", [*SYSTEM, 1, 2, 3]), "a")
    assert texts.find(chunks_of("acme", [*SYSTEM, 7, 7, 7])) == "a"
    assert texts.find(chunks_of("acme", CHAT)) == "b"


def test_what_begins_otherwise_or_is_too_short_is_known_to_nobody():
    texts = PrefixAffinity()
    texts.note(chunks_of("acme", CHAT), "a")
    assert texts.find(chunks_of("acme", [0, *CHAT])) == ""
    assert texts.find(chunks_of("acme", CHAT[: CHUNK - 1])) == ""
    assert texts.find(chunks_of("acme", [])) == ""


def test_tenants_know_nothing_of_each_other_and_nothing_is_kept_without_a_scope():
    texts = PrefixAffinity()
    texts.note(chunks_of("acme", CHAT), "a")
    texts.note(chunks_of("", CHAT), "b")
    assert texts.find(chunks_of("other", CHAT)) == ""
    assert texts.find(chunks_of("", CHAT)) == ""
    assert texts.find(chunks_of("acme", CHAT)) == "a"


def test_the_oldest_are_forgotten_and_of_a_text_its_end_first():
    texts = PrefixAffinity(most=4)
    texts.note(chunks_of("acme", CHAT), "a")
    texts.note(chunks_of("acme", [9] * 2 * CHUNK), "b")
    assert texts.find(chunks_of("acme", [9] * 5 * CHUNK)) == "b"
    assert texts.find(chunks_of("acme", CHAT[: 2 * CHUNK])) == "a"
    assert len(texts._seen) == 4
    texts.note(chunks_of("acme", [8] * 4 * CHUNK), "b")
    assert texts.find(chunks_of("acme", CHAT)) == ""


def test_token_ids_of_any_size_are_told_apart():
    texts = PrefixAffinity()
    texts.note(chunks_of("acme", [1 << 31] * CHUNK), "a")
    assert texts.find(chunks_of("acme", [(1 << 31) + 1] * CHUNK)) == ""
    assert texts.find(chunks_of("acme", [1 << 31] * CHUNK)) == "a"


class Unread(Sequence[int]):
    """A text that nobody may look into."""

    def __getitem__(self, index: object) -> int:
        raise AssertionError("the text was read")

    def __len__(self) -> int:
        return 1 << 20


async def test_the_text_of_a_session_that_fits_nowhere_is_not_read():
    pool = WorkerPool("o1")
    waiting = Wanted(Role.VERIFIER, tokens=10, text=(Unread(), ()), cache_scope="acme")
    assert pool.place(waiting) is None


def test_a_text_in_parts_is_the_text():
    for cut in (0, 5, CHUNK, len(CHAT)):
        assert chunks_of("acme", CHAT[:cut], tuple(CHAT[cut:])) == chunks_of("acme", CHAT)
