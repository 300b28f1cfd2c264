"""HTTP/2 pings in a silence: clients that ping every few seconds stay, floods are cut off."""

import asyncio
import struct
from contextlib import asynccontextmanager

import grpc

from services.runtime.serving import ServingOptions
from services.runtime.serving.options import server_options

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY, ACK = 4, 6, 7, 1
TOO_MANY = b"too_many_pings"


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, 0, 0, 0, 0, 0]) + payload


@asynccontextmanager
async def connected():
    """A bare HTTP/2 connection to a server of ours."""
    server = grpc.aio.server(options=server_options(ServingOptions()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(PREFACE + frame(SETTINGS))
        yield reader, writer
    finally:
        writer.close()
        await server.stop(None)


async def heard(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The kind of the next answer to a ping, or of the farewell, and what it says."""
    while True:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == GOAWAY or (head[3] == PING and head[4] & ACK):
            return head[3], payload


async def test_a_client_that_pings_every_few_seconds_in_a_silence_is_answered():
    async with connected() as (reader, writer):
        for number in range(5):
            said = struct.pack(">Q", number)
            writer.write(frame(PING, said))
            assert await heard(reader) == (PING, said)
            await asyncio.sleep(1.2)


async def test_a_client_that_sends_thousands_of_pings_is_cut_off():
    async with connected() as (reader, writer):
        writer.write(frame(PING, bytes(8)) * 3000)
        kind = PING
        while kind == PING:
            kind, payload = await heard(reader)
        assert payload.endswith(TOO_MANY)
