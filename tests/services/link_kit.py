"""A served fake core or a whole process, and the orchestrator's end of its links."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import grpc
from paceline.v1 import verifier_pb2_grpc

from services.contract import types as t
from services.contract import wire
from services.contract.worker_messages import SessionStarted
from services.runtime.host import WorkerHost
from services.runtime.serving import Served, ServingOptions, open_channel, serve_worker
from testkit.child import child
from tests.services.fakes import FakeCore, open_verify

ROOT = Path(__file__).parents[2]
HELLO = t.LinkHello("o1")
BUNDLE = t.TokenizerBundle("fingerprint", "x" * (3 << 20), chat_template="{{ messages }}")


@contextmanager
def process(script, ready, *arguments):
    """A Python process, which is told where to write its address, and that address."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "protos")))
    command = [sys.executable, "-c", script, *arguments, str(ready)]
    with child(command, ready, {"PYTHONPATH": path}, cwd=ROOT) as running:
        yield running, ready.read_text().strip()


async def first_event(kind, call, codec):
    """The first event of a kind on a link on which nothing has failed before."""
    async with asyncio.timeout(60):
        async for message in call:
            for event in codec.decode_response(message):
                if isinstance(event, kind):
                    await call.done_writing()
                    return event
                assert isinstance(event, (SessionStarted, t.Progress))
    raise AssertionError(f"the link ended without a {kind.__name__}")


class Worker:
    """A served fake core."""

    def __init__(self, role, protocol=1):
        self.cores, self.protocol = [], protocol
        self.host = WorkerHost(self.make_core)
        self.role = role
        self.stop = asyncio.Event()
        self.address = asyncio.get_running_loop().create_future()
        self.drained = []

    def make_core(self, emit):
        self.cores.append(FakeCore(emit))
        return self.cores[0]

    @property
    def core(self):
        return self.cores[0]

    @property
    def description(self):
        spoken = {"protocol_min": self.protocol, "protocol_max": self.protocol}
        return t.WorkerDescription("w1", self.role, methods=("ngram",), **spoken)

    async def serve(self, options, bundle):
        return await serve_worker(
            options,
            Served(self.host, self.description, bundle),
            on_ready=self.address.set_result,
            on_drain=self.drained.append,
            stop=self.stop,
        )


@asynccontextmanager
async def worker(role=t.Role.VERIFIER, bundle=BUNDLE, protocol=1, **options):
    served = Worker(role, protocol)
    served.task = asyncio.create_task(served.serve(ServingOptions(**options), bundle))
    await asyncio.wait([served.task, served.address], return_when=asyncio.FIRST_COMPLETED)
    async with open_channel(served.address.result()) as channel:
        served.channel = channel
        served.stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        yield served
    served.core.gate.set()
    served.stop.set()
    async with asyncio.timeout(60):
        served.status = await served.task


class Link:
    """The orchestrator's end."""

    def __init__(self, served, hello=HELLO):
        self.call = served.stub.Link()
        self.hello = hello
        self.unread = []

    async def send(self, *commands, codec=wire.VERIFIER_LINK):
        await self.call.write(codec.encode_request(commands, self.hello))
        self.hello = None

    async def receive(self, kind, count=1):
        """The next `count` events of `kind`, whatever comes between."""
        found = []
        async with asyncio.timeout(60):
            while len(found) < count:
                event = await self.next_event()
                found += [event] if isinstance(event, kind) else []
        return found

    async def next_event(self):
        while not self.unread:
            message = await self.call.read()
            assert message is not grpc.aio.EOF
            self.unread = wire.VERIFIER_LINK.decode_response(message)
        return self.unread.pop(0)

    async def ended(self):
        """The status, which comes after the last message is read."""
        async with asyncio.timeout(60):
            with suppress(grpc.aio.AioRpcError):
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            return await self.call.code(), await self.call.details()


async def opened(served, session="s", *commands):
    """A link with an open session, to which these were sent along."""
    link = Link(served)
    await link.send(open_verify(session), *commands)
    await link.receive(t.VerifyOpened)
    return link
