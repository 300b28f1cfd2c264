"""Orchestrators die, stall and drain, clients leave and come back: no token is lost or doubled."""

import asyncio
import signal
from collections.abc import Iterator

import pytest
from paceline import (
    Aborted,
    Client,
    DeadlineExceeded,
    Generation,
    InvalidArgument,
    ResourceExhausted,
)

from testkit.chaos.listener import until
from testkit.chaos.site import ALWAYS_DRAFT, Layout
from tests.faults.conftest import served
from tests.faults.kit import CASES, HEARD, WIRE_SECONDS, Site

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

MOST_SESSIONS = 6


@pytest.fixture(scope="module")
def shared(models: tuple[str, str]) -> Iterator[Site]:
    flags = (*ALWAYS_DRAFT, "--max-sessions", str(MOST_SESSIONS))
    layout = Layout(
        *models, verifiers=1, drafters=1, wire_seconds=WIRE_SECONDS, orchestrator_flags=flags
    )
    with served(layout) as site:
        yield site


async def test_sessions_of_a_killed_orchestrator_go_on_at_the_other(site: Site):
    async with site.streams():
        site.cluster.named("orchestrator-1").kill()


async def test_sessions_of_a_draining_orchestrator_go_on_at_the_other(site: Site):
    async with site.streams():
        assert site.cluster.named("orchestrator-1").end(60) == 0


async def test_connections_of_clients_that_are_cut_are_made_again(site: Site):
    async with site.streams():
        assert site.cluster.named("orchestrator-1").proxy.cut() > 0


async def test_a_client_behind_a_half_open_connection_finds_the_other_orchestrator(site: Site):
    async with site.streams() as streams:
        site.cluster.named("orchestrator-1").proxy.half_open()
        await site.check(streams)


async def test_the_last_of_two_orchestrators_that_own_a_session_wins(site: Site):
    """The first stands still while the second takes over, and goes on as if it owned it."""
    first, second = (site.cluster.named(f"orchestrator-{n}") for n in (1, 2))
    async with Client(first.address, resume=False) as one, Client(second.address) as other:
        streams = [site.new(case).ask(one) for case in CASES]
        for stream in streams:
            await stream.until(HEARD)
        first.send(signal.SIGSTOP)
        taken = [stream.take_over(other) for stream in streams]
        for stream in taken:
            await until(lambda stream=stream: stream.done or stream.transcript.next > HEARD + 50)
        first.send(signal.SIGCONT)
        await site.check(streams)
        assert {type(stream.error) for stream in streams} == {Aborted}


async def test_a_second_resume_over_a_live_one_gets_the_rest(site: Site):
    async with site.streams() as streams, Client(site.cluster.addresses[1]) as other:
        for stream in streams:
            stream.take_over(other)
        for stream in streams:
            await stream.end()


async def test_a_client_that_left_without_a_word_finds_its_session_again(site: Site):
    addresses = site.cluster.addresses
    streams = [site.new(case).ask_barely(addresses) for case in CASES]
    for stream in streams:
        await stream.until(HEARD)
        assert stream.bare is not None
        stream.bare.leave(0.5)
    await site.check(streams)


async def test_a_session_outlives_the_deadline_of_the_call_that_began_it(site: Site):
    case, whole = CASES[1], site.texts[1]
    async with Client(site.cluster.addresses) as client:
        stream = client.generate(case.prompt, timeout=0.3, request_id="brief", **case.options)
        with pytest.raises(DeadlineExceeded):
            await stream
        # The deadline may pass before the session exists; then the same request begins it.
        again = await client.generate(case.prompt, request_id="brief", **case.options)
    assert list(again.token_ids) == whole.token_ids


async def test_overload_is_refused_before_any_work_and_hurts_nobody(site: Site):
    wire = site.cluster.named("verifier-1").proxy
    async with site.streams() as streams, Client(site.cluster.addresses[0], resume=False) as late:
        # Nobody ends while the others ask.
        wire.delay(0.8)
        more = [
            asyncio.ensure_future(late.generate(CASES[0].prompt, **CASES[0].options).result())
            for _ in range(MOST_SESSIONS)
        ]
        too_many = len(streams)
        await until(lambda: sum(one.done() for one in more) >= too_many)
        wire.heal()
        ends = await asyncio.gather(*more, return_exceptions=True)
        errors = [end for end in ends if isinstance(end, ResourceExhausted)]
        assert len(errors) == too_many
        assert all(error.retry_after for error in errors)
        texts = [list(end.token_ids) for end in ends if isinstance(end, Generation)]
        assert texts == [site.texts[0].token_ids] * (MOST_SESSIONS - too_many)


async def test_a_bad_request_names_its_field_and_creates_nothing(site: Site):
    before = site.cluster.store.sessions()
    async with Client(site.cluster.addresses) as client:
        with pytest.raises(InvalidArgument) as caught:
            await client.generate("hello", temperature=-1.0)
    assert [violation.field for violation in caught.value.violations] == ["sampling.temperature"]
    assert site.cluster.store.sessions() == before
