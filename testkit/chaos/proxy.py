"""A TCP proxy that misbehaves on command: delay, cut, half-open.

All proxies run on one event loop in a thread of its own; every method may be called from
any thread. Bytes keep their order, whatever the delay does meanwhile.

    delay      each byte comes that much later, each way
    cut        every connection ends at once, with RST
    half-open  connections stand, and whatever is sent on them goes nowhere, as after a
               peer's power loss: new ones likewise until `heal`, old ones for ever
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

_CHUNK = 1 << 16
_WAITING = 256
"""Chunks on their way, each way; a sender that is faster waits."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_SETTLE_SECONDS = 10.0

T = TypeVar("T")
Piece = tuple[float, bytes]
"""When it is due, and what; nothing = the end."""


class Network:
    """The thread of all proxies of a cluster."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._proxies: list[Proxy] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SETTLE_SECONDS)
        self._loop.close()

    def proxy(
        self, target: Callable[[], str], delay: float = 0.0, tls: ssl.SSLContext | None = None
    ) -> Proxy:
        """A new proxy. `target` says host:port or unix:path; empty = nobody is there.

        It is asked at every new connection, on the proxies' thread. `tls`: as whom the proxy
        serves.
        """
        made = Proxy(self, target, delay, tls)
        self._proxies.append(made)
        return made

    async def _end(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        every = asyncio.all_tasks() - {asyncio.current_task()}
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that ran on the proxies' loop."""
        running: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return running.result(_SETTLE_SECONDS)


class Proxy:
    """One listening address, and the connections that came in by it.

    `passed`: the bytes that went on, of both ways.
    """

    def __init__(
        self,
        network: Network,
        target: Callable[[], str],
        delay: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._network = network
        self._target = target
        self._usual = self._delay = delay
        self._swallows = False
        self.passed = 0
        self._connections: set[_Connection] = set()
        self._server = network.run(self._listen(tls))
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def delay(self, seconds: float) -> None:
        """Let every byte take that much longer than usual, each way."""
        self._delay = self._usual + seconds

    def cut(self) -> int:
        """End every connection at once; how many that were."""
        return self._network.run(self._cut())

    def half_open(self) -> None:
        """Swallow whatever is sent from now on, on connections to come, too."""
        self._network.run(self._swallow())

    def heal(self) -> None:
        """Be a good wire again for new connections; half-open ones stay dead."""
        self._delay, self._swallows = self._usual, False

    def close(self) -> None:
        """Listen no more, and end every connection; belongs to the proxies' loop."""
        self._server.close()
        for connection in self._connections:
            connection.reset()

    @property
    def now_delayed(self) -> float:
        """Seconds that a byte takes each way."""
        return self._delay

    async def _listen(self, tls: ssl.SSLContext | None) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=tls)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer, dead=self._swallows)
        self._connections.add(connection)
        try:
            # Cancelled when the proxies end; asyncio's server must not hear of it.
            with contextlib.suppress(asyncio.CancelledError):
                await connection.pass_on(self._target())
        finally:
            self._connections.discard(connection)
            connection.reset()

    async def _cut(self) -> int:
        for connection in self._connections:
            connection.reset()
        return len(self._connections)

    async def _swallow(self) -> None:
        self._swallows = True
        for connection in self._connections:
            connection.dead = True


class _Connection:
    """What came in, and what it leads to."""

    def __init__(
        self,
        proxy: Proxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        dead: bool,
    ) -> None:
        self._proxy = proxy
        self._near = reader, writer
        self._far_writer: asyncio.StreamWriter | None = None
        self.dead = dead

    async def pass_on(self, target: str) -> None:
        """Carry bytes both ways until one side ends; a dead one only swallows them."""
        reader, writer = self._near
        try:
            far_reader, far = await _connect(target)
        except OSError:
            return
        self._far_writer = far
        for one in (writer, far):
            _no_delay(one)
        ways = [
            asyncio.ensure_future(self._carry(reader, far)),
            asyncio.ensure_future(self._carry(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if self.dead:
                # Nobody hears that the other side has ended.
                await asyncio.wait(ways)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)

    def reset(self) -> None:
        """End both sides at once."""
        for writer in (self._near[1], self._far_writer):
            if writer is not None:
                _reset(writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces: asyncio.Queue[Piece] = asyncio.Queue(_WAITING)
        reading = asyncio.ensure_future(self._read(reader, pieces))
        try:
            await self._write(pieces, writer)
        finally:
            reading.cancel()

    async def _read(self, reader: asyncio.StreamReader, pieces: asyncio.Queue[Piece]) -> None:
        data = b"-"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            if not (self.dead and data):
                due = asyncio.get_running_loop().time() + self._proxy.now_delayed
                await pieces.put((due, data))

    async def _write(self, pieces: asyncio.Queue[Piece], writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(OSError):
            while True:
                due, data = await pieces.get()
                if due > clock():
                    await asyncio.sleep(due - clock())
                if self.dead and data:
                    continue
                if not data:
                    return await self._end(writer)
                self._proxy.passed += len(data)
                writer.write(data)
                await writer.drain()

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        """One side has ended, and so does the other, with all that was said to it."""
        if not self.dead:
            await writer.drain()
            writer.close()
            await writer.wait_closed()


async def _connect(target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if target.startswith("unix:"):
        return await asyncio.open_unix_connection(target.removeprefix("unix:"))
    host, _, port = target.rpartition(":")
    if not port:
        raise ConnectionRefusedError("nobody is there")
    return await asyncio.open_connection(host, int(port))


def _no_delay(writer: asyncio.StreamWriter) -> None:
    handle = writer.get_extra_info("socket")
    if handle is not None and handle.family == socket.AF_INET:
        handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _reset(writer: asyncio.StreamWriter) -> None:
    handle = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        if handle is not None and handle.family == socket.AF_INET:
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
