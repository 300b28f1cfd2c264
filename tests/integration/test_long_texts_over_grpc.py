"""A long text that was kept, and logprobs that nobody took, cost nobody else anything."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from paceline import Chunk, Complete
from paceline.v1 import inference_pb2 as pb

from orchestrator.session.tenants import DEFAULT_TENANT
from orchestrator.text import TextStream
from services.contract.types import FinishReason
from tests.integration.cluster import PATIENT, Cluster, cluster
from tests.integration.front_door import leave_in_the_store
from tests.integration.known import known_verifier, stub
from tests.waiting import until

TOKENS = 30_000
BUSY = grpc.StatusCode.RESOURCE_EXHAUSTED


async def kept(running: Cluster, name: str, tokens: int = TOKENS, *, ended: bool = True) -> list:
    """A session of so many tokens that the store has, as an orchestrator left it."""
    ids = running.inference._target.tokenizer.encode(
        "the large verifier checks what the small drafter wrote ahead, "
    )
    whole = list(ids * (tokens // len(ids) + 1))[:tokens]
    asked = {"max_tokens": tokens + 1, "stop": ["never said"], "temperature": 1.0}
    key = await leave_in_the_store(running, name, whole[: tokens // 10], **asked)
    for index in range(1, 10):
        part = slice(index * tokens // 10, (index + 1) * tokens // 10)
        await running.store.commit(key, 1, index + 1, part.start, whole[part])
    if ended:
        await running.store.finish(key, 1, tokens, FinishReason.STOP)
    return whole


@pytest.fixture
async def served() -> AsyncIterator[Cluster]:
    async with cluster([await known_verifier()], [], PATIENT, max_sessions=2) as running:
        yield running


async def test_a_long_text_is_read_again_while_the_loop_goes_on(served, monkeypatch):
    whole = await kept(served, "s")
    pieces = served.inference._target.tokenizer.decode(whole, skip_special_tokens=False)
    blocks = blocked(monkeypatch)
    events = [event async for event in served.client.resume("s", 100)]
    chunks = [event for event in events if isinstance(event, Chunk)]
    assert [token for chunk in chunks for token in chunk.token_ids] == whole[100:]
    assert len(chunks) > 5
    assert isinstance(events[-1], Complete)
    assert events[-1].text == pieces
    assert pieces.endswith("".join(chunk.text for chunk in chunks))
    # A text of one step would have been made before the loop came round again.
    assert blocks
    assert max(blocks) < TOKENS // 10


def blocked(monkeypatch) -> list[int]:
    """Notes how many tokens became text before the loop came round."""
    blocks: list[int] = []
    block: list[int] = []
    append, loop = TextStream.append, asyncio.get_running_loop()

    def close() -> None:
        blocks.append(sum(block))
        block.clear()

    def noting(self, tokens, finished=False):
        if not block:
            loop.call_soon(close)
        block.append(len(tokens))
        return append(self, tokens, finished)

    monkeypatch.setattr(TextStream, "append", noting)
    return blocks


async def test_its_rounds_are_told_while_the_loop_goes_on(served, monkeypatch):
    await kept(served, "s")
    blocks = blocked(monkeypatch)
    assert len((await served.client.get_session("s", rounds=True)).rounds) == 10
    assert blocks
    assert max(blocks) < TOKENS // 10


async def test_a_long_text_that_goes_on_is_taken_over_while_the_loop_goes_on(served, monkeypatch):
    whole = await kept(served, "s", TOKENS, ended=False)
    blocks = blocked(monkeypatch)
    taken: list[int] = []
    async for event in served.client.resume("s", 0):
        if isinstance(event, Chunk):
            taken += event.token_ids
        if len(taken) >= TOKENS:
            break
    assert taken[:TOKENS] == whole
    assert blocks
    assert max(blocks) < TOKENS // 10


async def test_readers_of_what_has_ended_are_bounded_and_told_when_to_come_back(served):
    whole = await kept(served, "s", 1000)
    texts = served.inference._stored_texts
    async with stub(served.address) as front:
        with texts.reader(DEFAULT_TENANT), texts.reader(DEFAULT_TENANT):
            for call in (
                front.Resume(pb.ResumeRequest(session_id="s")).read(),
                front.GetSession(pb.GetSessionRequest(session_id="s", include_rounds=True)),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is BUSY
            told = await front.GetSession(pb.GetSessionRequest(session_id="s"))
            assert told.committed_tokens == 1000
        leaving = front.Resume(pb.ResumeRequest(session_id="s"))
        await leaving.read()
        leaving.cancel()
    assert (await served.client.resume("s", 0)).token_ids == tuple(whole)
    await until(lambda: not texts.readers)
