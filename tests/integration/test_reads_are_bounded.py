"""What many small calls for a session make Redis send is small, whatever its request carried."""

import asyncio

import grpc
from paceline.v1 import inference_pb2 as pb

from services.runtime.redis_client import open_client
from tests.integration.cluster import PATIENT, PROMPT, plain, start_verifier
from tests.integration.front_door import behind_a_door

OK = grpc.StatusCode.OK
STUFFING = b"\x00" * (7 << 20)
GENERATE = "/paceline.v1.InferenceService/Generate"
CALLS, MOST_BYTES = 150, 1 << 20


def stuffed(request: pb.GenerateRequest) -> bytes:
    """The request, with megabytes in a field that nobody knows."""
    tag, length = (1000 << 3) | 2, len(STUFFING)
    return request.SerializeToString() + _varint(tag) + _varint(length) + STUFFING


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes([number])
    return bytes([number & 127 | 128]) + _varint(number >> 7)


async def test_many_calls_for_a_session_with_a_long_request_cost_nobody_anything():
    async with behind_a_door([await start_verifier()], [], PATIENT) as (running, door):
        sampling = pb.SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        asked = pb.GenerateRequest(request_id="long", prompt=PROMPT, sampling=sampling)
        async with grpc.aio.insecure_channel(running.address) as channel:
            async for _ in channel.unary_stream(GENERATE)(stuffed(asked)):
                pass
        client = open_client(running.redis.url)
        [meta] = [key async for key in client.scan_iter("paceline:*long*meta")]
        assert await client.memory_usage(meta) < 10_000
        before = (await client.info("stats"))["total_net_output_bytes"]
        other = await door.under_way(60)
        looks = await asyncio.gather(*(door.stored("long") for _ in range(CALLS)))
        reads = [door.resume("long", 0) for _ in range(CALLS // 10)]
        for reading in (*reads, other):
            await reading.end()
        sent = (await client.info("stats"))["total_net_output_bytes"] - before
        await client.aclose()
        assert {look.committed_tokens for look in looks} == {5}
        assert {(read.status, *read.tokens) for read in reads} == {(OK, *plain(PROMPT, 5))}
        assert (other.status, other.tokens) == (OK, plain(PROMPT, 60))
        assert sent < MOST_BYTES
