"""A peer of a worker that is no orchestrator ends its own link, and holds nothing for long."""

import asyncio
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from paceline.v1 import drafter_pb2_grpc, verifier_pb2_grpc
from services.drafter.core import DrafterCore
from services.verifier.core import VerifierCore
from services.verifier.session import MOST_QUEUED

from services.contract import types as t
from services.contract import wire
from services.drafter import core as drafter_core
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.runtime.serving import open_channel
from services.runtime.serving.links import LinkServer
from tests.fuzz.engine import CAPACITY, table_engine
from tests.integration.cluster import start_core
from tests.waiting import until

SAMPLING = t.ResolvedSampling(max_tokens=8)


class Peer:
    """One link, of which every event is kept."""

    def __init__(self, channel, role, name="o1", reads=True):
        stub, self.codec = {
            t.Role.VERIFIER: (verifier_pb2_grpc.VerifierServiceStub, wire.VERIFIER_LINK),
            t.Role.DRAFTER: (drafter_pb2_grpc.DrafterServiceStub, wire.DRAFTER_LINK),
        }[role]
        self.call = stub(channel).Link()
        self.hello = t.LinkHello(name)
        self.events = []
        self.reading = asyncio.create_task(self._read()) if reads else None

    async def _read(self):
        with suppress(grpc.aio.AioRpcError):
            async for message in self.call:
                self.events += self.codec.decode_response(message)

    async def send(self, *commands):
        await self.call.write(self.codec.encode_request(commands, self.hello))
        self.hello = None

    def failures(self):
        return [event.reason for event in self.events if isinstance(event, t.SessionFailed)]

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def verifier():
    engine = table_engine()
    worker = await start_core(VerifierCore, engine, "v1", engine.bundle)
    async with open_channel(worker.address) as channel:
        worker.engine = engine
        yield worker, lambda **more: Peer(channel, t.Role.VERIFIER, **more)
    worker.stop.set()
    await worker.task


@asynccontextmanager
async def drafter():
    methods = {"model": ModelDrafter(table_engine(1)), "ngram": NgramDrafter()}
    worker = await start_core(DrafterCore, methods, "d1")
    async with open_channel(worker.address) as channel:
        yield worker, lambda **more: Peer(channel, t.Role.DRAFTER, **more)
    worker.stop.set()
    await worker.task


USUAL = {"committed": (), "mode": t.VerifyMode.GREEDY, "sampling": SAMPLING, "seed": 1, "window": 4}


def open_verify(session="s", prompt=(1, 2), **fields):
    return t.OpenVerify(session, 1, 1, prompt, **USUAL | fields)


def open_draft(session="s", prompt=(1, 2, 1), **fields):
    return t.OpenDraft(session, 1, prompt, **USUAL | fields)


async def still_serves(peer):
    """Another link's session goes on as if nothing were."""
    await peer.send(t.Verify("fine", 1, 1, 0, t.DraftTree((3,))))
    await until(lambda: peer.of(t.Verdict))
    await peer.send(t.CloseVerify("fine"))


async def test_sessions_without_end_are_refused_when_the_memory_is_taken():
    async with verifier() as (worker, connect):
        hostile, other = connect(), connect()
        await other.send(open_verify("fine"))
        await until(lambda: other.of(t.VerifyOpened))
        each = 2 + SAMPLING.max_tokens + 4
        count = CAPACITY // each + 500
        for start in range(0, count, 1000):
            await hostile.send(*(open_verify(f"s{n}") for n in range(start, start + 1000)))
        await until(lambda: hostile.failures().count(t.FailureReason.CAPACITY) >= 500)
        assert worker.engine.kv_tokens_used <= CAPACITY
        await still_serves(other)
        hostile.call.cancel()
        await until(lambda: worker.engine.kv_tokens_used == 0)
        await until(lambda: worker.host.progress().sessions == 0)


async def test_drafting_sessions_without_end_are_refused_without_kv_too(monkeypatch):
    monkeypatch.setattr(drafter_core, "MOST_TEXT", 1100)
    async with drafter() as (worker, connect):
        hostile = connect()
        await hostile.send(*[open_draft(f"s{n}", method="ngram") for n in range(200)])
        await until(lambda: len(hostile.failures()) + len(hostile.of(t.DraftOpened)) == 200)
        assert set(hostile.failures()) == {t.FailureReason.CAPACITY}
        assert len(hostile.of(t.DraftOpened)) == 100
        await hostile.send(*(t.CloseDraft(f"s{n}") for n in range(50)))
        await hostile.send(*(open_draft(f"t{n}", method="ngram") for n in range(50)))
        await until(lambda: len(hostile.of(t.DraftOpened)) == 150)
        hostile.call.cancel()
        await until(lambda: worker.host.progress().sessions == 0)


IMPOSSIBLE_OPENS = {
    "no prompt": {"prompt": ()},
    "a huge prompt": {"prompt": (1,) * 200_000},
    "tokens beyond the vocabulary": {"prompt": (2**32 - 1,)},
    "committed beyond the end": {"committed": (1,) * 500},
    "a temperature that is no number": {
        "mode": t.VerifyMode.COUPLED,
        "sampling": t.ResolvedSampling(temperature=float("nan"), max_tokens=8),
    },
    "penalties without end": {
        "sampling": t.ResolvedSampling(frequency_penalty=float("inf"), max_tokens=8)
    },
    "a negative law": {"sampling": t.ResolvedSampling(top_p=-1.0, max_tokens=8)},
    "an endless output": {"sampling": t.ResolvedSampling(max_tokens=2**32 - 1)},
}


@pytest.mark.parametrize("fields", IMPOSSIBLE_OPENS.values(), ids=IMPOSSIBLE_OPENS.keys())
async def test_an_open_that_cannot_be_fails_its_session_alone(fields, caplog):
    async with verifier() as (worker, connect):
        peer = connect()
        await peer.send(open_verify("fine"), open_verify("bad", **fields))
        await until(peer.failures)
        assert peer.failures() == [t.FailureReason.INVALID]
        await still_serves(peer)
        await until(lambda: worker.engine.kv_tokens_used == 0)
    async with drafter() as (worker, connect):
        peer = connect()
        await peer.send(open_draft("fine"), open_draft("bad", **fields))
        await until(lambda: peer.failures() or len(peer.of(t.DraftOpened)) == 2)
        await until(lambda: any(draft.session == "fine" for draft in peer.of(t.Draft)))
        assert not {t.FailureReason.INTERNAL} & set(peer.failures())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


STRANGE_COMMITS = [
    t.CommitDraft("s", 1, 5, (1,)),
    t.CommitDraft("s", 1, 2**32 - 1, (1,)),
    t.CommitDraft("s", 2**32 - 1, 0, (11,)),
    t.CommitDraft("s", 0, 0, (2**32 - 1,)),
    t.CommitDraft("s", 1, 0, (1,) * 100_000),
    t.Credit("s", 2**32 - 1),
    t.Credit("nobody", 5),
    t.CloseDraft("nobody"),
    t.CommitDraft("nobody", 1, 0, (1,)),
    open_draft("s", num_candidates=0),
    open_draft("t", num_candidates=2**32 - 1),
    open_draft("u", method=",".join(["model"] * 1000)),
    open_draft("w", method="model,ngram", num_candidates=8, drafter_index=2**32 - 1),
]


@pytest.mark.parametrize("command", STRANGE_COMMITS, ids=range(len(STRANGE_COMMITS)))
async def test_commands_that_do_not_fit_leave_the_drafter_serving(command, caplog):
    async with drafter() as (worker, connect):
        hostile, other = connect(), connect()
        await hostile.send(open_draft(), command, command)
        await other.send(open_draft("fine"))
        await until(lambda: other.of(t.Draft))
        hostile.call.cancel()
        other.call.cancel()
        await until(lambda: worker.host.progress().sessions == 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_blocks_without_end_for_a_session_that_is_not_open_yet_fail_it():
    """While a prompt is read nothing is taken from the queue: that is bounded."""
    core_events = []
    engine = table_engine()
    core = VerifierCore(engine, emit=lambda link, event: core_events.append(event), worker_id="v1")
    core.handle(1, open_verify("s", prompt=(1,) * 40))
    for number in range(MOST_QUEUED + 1):
        core.handle(1, t.Verify("s", 1, number + 1, 0))
    [failed] = core_events
    assert failed.reason is t.FailureReason.INVALID
    assert engine.kv_tokens_used == 0


async def test_a_message_of_too_many_commands_ends_the_link():
    async with verifier() as (_, connect):
        peer = connect()
        await peer.send(*[t.CloseVerify("s")] * ((1 << 16) + 1))
        await until(peer.call.done)
        assert await peer.call.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["a\nforged line", "x" * 5000, "\x1b[31m", ""])
async def test_a_peer_whose_name_would_spoil_the_log_is_refused(name, caplog):
    async with verifier() as (_, connect):
        peer = connect(name=name)
        await peer.send()
        await until(peer.call.done)
        assert await peer.call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "forged" not in caplog.text


async def test_a_peer_that_never_reads_loses_its_sessions(monkeypatch):
    defaults = LinkServer.__init__.__defaults__
    monkeypatch.setattr(LinkServer.__init__, "__defaults__", (*defaults[:-1], 0.5))
    narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384)]
    async with (
        verifier() as (worker, connect),
        grpc.aio.insecure_channel(worker.address, options=narrow) as channel,
    ):
        hostile, other = Peer(channel, t.Role.VERIFIER, reads=False), connect()
        await other.send(open_verify("fine"))
        await hostile.send(open_verify())
        await until(lambda: worker.host.progress().sessions == 2)

        async def never_read():
            # Each open of a known session is answered once more.
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                while True:
                    await hostile.send(*[open_verify()] * 1000)

        sending = asyncio.create_task(never_read())
        await until(lambda: worker.host.progress().sessions == 1)
        sending.cancel()
        await still_serves(other)
        hostile.call.cancel()
