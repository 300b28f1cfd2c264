"""What is kept of a request: what it was resolved to, and nothing else that came with it."""

import pytest
from paceline.v1 import inference_pb2 as pb

from tests.integration.front_door import leave_in_the_store
from tests.integration.known import known_front, read, request, text

MIB = 1 << 20
UNKNOWN = b"\xfa\x3f"
"""The tag of field 1023, which holds bytes."""


def padded(asked: pb.GenerateRequest, size: int) -> pb.GenerateRequest:
    """The same with so many bytes in a field that nobody knows."""
    length, count = b"", size
    while count > 127:
        length, count = length + bytes([count & 127 | 128]), count >> 7
    made = asked.SerializeToString() + UNKNOWN + length + bytes([count]) + b"x" * size
    return pb.GenerateRequest.FromString(made)


async def bytes_of(running) -> int:
    """What the store's keys take."""
    client = running.store._client
    return sum([await client.memory_usage(key) or 0 for key in await client.keys("*")])


@pytest.mark.parametrize("n", [1, 16])
async def test_of_a_large_message_nothing_is_kept_that_nobody_knows(n):
    asked = request(1, 5, "r")
    asked.n = n
    async with known_front() as (running, front):
        call = front.Generate(padded(asked, 7 * MIB))
        async for _ in call:
            pass
        assert await bytes_of(running) < 100_000


async def test_a_record_that_still_has_its_request_goes_on():
    async with known_front() as (running, front):
        key = await leave_in_the_store(running, "s", text(1, 3), seed=1)
        client = running.store._client
        [meta] = [name for name in await client.keys("*") if name.endswith(b":meta")]
        await client.hset(meta, "request", b"what was asked for, by an earlier version")
        ended = await read(front.Resume(pb.ResumeRequest(session_id=key.session_id)))
        assert ended.tokens == text(1, 40)
