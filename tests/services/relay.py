"""A connection in the middle."""

import asyncio


class Relay:
    """Passes everything on to a port, until it is frozen; it never closes by itself."""

    def __init__(self, port):
        self._port = port
        self._flows = asyncio.Event()
        self._flows.set()
        self._tasks = set()

    def freeze(self):
        self._flows.clear()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.ensure_future(self._pass_on(source, sink)))

    async def _pass_on(self, source, sink):
        try:
            while data := await source.read(65536):
                await self._flows.wait()
                sink.write(data)
        finally:
            sink.close()
