"""The client and the orchestrator together: a session that is let go of is taken up again."""

import pytest
from paceline import Aborted, Chunk, Complete, Started

from orchestrator.session.ports import SessionKey
from services.contract.errors import Fenced, NoWorker
from tests.integration.cluster import PROMPT, cluster, plain, start_drafter, start_verifier

TOKENS = 60


@pytest.mark.parametrize("after", [(0,), (3,), (1, 5, 9)])
async def test_a_session_that_its_owner_lets_go_of_midway_reaches_its_caller_whole(after):
    """`after`: how many chunks have come whenever the owner fails the session."""
    async with cluster([await start_verifier()], [await start_drafter(seed=3)]) as running:
        events = []
        stream = running.client.generate(
            PROMPT, temperature=0.0, max_tokens=TOKENS, ignore_eos=True, request_id="moved"
        )
        async for event in stream:
            events.append(event)
            if len(events) - 1 in after:
                for driver in running.inference.live.drivers():
                    driver.fail(NoWorker("this orchestrator stops", retry_after=0.05))
        stored = await running.inference.stored(_key("moved"))
    chunks = [event for event in events if isinstance(event, Chunk)]
    assert [type(event) for event in events] == [Started, *(Chunk for _ in chunks), Complete]
    assert [token for chunk in chunks for token in chunk.token_ids] == plain(PROMPT, TOKENS)
    assert "".join(chunk.text for chunk in chunks) == events[-1].text
    assert stored.term > 1


async def test_a_session_that_somebody_else_took_over_is_not_taken_back():
    async with cluster([await start_verifier()], []) as running:

        async def read_while_another_takes_over():
            stream = running.client.generate(PROMPT, max_tokens=TOKENS, request_id="taken")
            async for event in stream:
                if isinstance(event, Started):
                    for driver in running.inference.live.drivers():
                        driver.fail(Fenced("another orchestrator owns the session"))

        with pytest.raises(Aborted):
            await read_while_another_takes_over()
        assert (await running.inference.stored(_key("taken"))).term == 1


def _key(session_id):
    return SessionKey("default", session_id)
