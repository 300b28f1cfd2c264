"""A peer of a worker that is no orchestrator ends its own link, and holds nothing for long."""

import asyncio
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from paceline.worker.v1 import drafter_pb2_grpc, verifier_pb2_grpc

from services.contract import types as t
from services.contract.frames import (
    DraftFrame,
    DraftName,
    DraftRow,
    StepFrame,
    StepRow,
    draft_frame,
    draft_rows,
    grants,
    step_frame,
    step_rows,
)
from services.contract.wire import DRAFTER_LINK, VERIFIER_LINK
from services.contract.worker_messages import (
    EndSession,
    SessionGone,
    SessionStarted,
    SetWindow,
    StartDraft,
    StartVerify,
    TextStates,
)
from services.drafter.hypotheses import HypothesisCore
from services.drafter.hypotheses import core as drafter_core
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.runtime.serving import open_channel
from services.runtime.serving.links import LinkServer
from services.verifier.running.core import RunningCore
from services.verifier.running.mailbox import MOST_HELD
from tests.fuzz.engine import CAPACITY, table_engine
from tests.integration.cluster import start_core, start_worker
from tests.waiting import until

SAMPLING = t.ResolvedSampling(max_tokens=8)


class Peer:
    """One link, of which every event is kept."""

    def __init__(self, channel, role, name="o1", reads=True):
        stub, self.codec = {
            t.Role.VERIFIER: (verifier_pb2_grpc.VerifierServiceStub, VERIFIER_LINK),
            t.Role.DRAFTER: (drafter_pb2_grpc.DrafterServiceStub, DRAFTER_LINK),
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
        return [event.reason for event in self.events if isinstance(event, SessionGone)]

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def verifier():
    engine = table_engine()
    worker = await start_worker(
        lambda emit: RunningCore(engine, emit=emit, worker_id="v1", absorb=emit.absorb),
        engine.bundle,
    )
    async with open_channel(worker.address) as channel:
        worker.engine = engine
        yield worker, lambda **more: Peer(channel, t.Role.VERIFIER, **more)
    worker.stop.set()
    await worker.task


@asynccontextmanager
async def drafter():
    methods = {"model": ModelDrafter(table_engine(1)), "ngram": NgramDrafter()}
    worker = await start_core(HypothesisCore, methods, "d1")
    async with open_channel(worker.address) as channel:
        yield worker, lambda **more: Peer(channel, t.Role.DRAFTER, **more)
    worker.stop.set()
    await worker.task


FINE = 10**6
"""The handle of a session that is as it should be."""
USUAL = {"output": (), "mode": t.VerifyMode.GREEDY, "sampling": SAMPLING, "seed": 1, "window": 4}


def open_verify(handle=1, prompt=(1, 2), **fields):
    given = {"limit": 0, **USUAL, **fields}
    return StartVerify(handle, 1, f"s{handle}", 1, prompt, **given)


def open_draft(handle=1, prompt=(1, 2, 1), **fields):
    return StartDraft(handle, 1, f"s{handle}", 1, prompt, **USUAL | fields)


async def still_serves(peer):
    """Another link's session goes on as if nothing were."""
    await peer.send(grants([(FINE, 8)]))
    await until(lambda: FINE in heard_of(peer))
    await peer.send(EndSession(FINE))


def heard_of(peer):
    """The sessions that steps came of."""
    return {row.handle for frame in peer.of(StepFrame) for row in step_rows(frame)}


def drafted_for(peer):
    return {row.handle for frame in peer.of(DraftFrame) for row in draft_rows(frame)}


async def test_sessions_without_end_are_refused_when_the_memory_is_taken():
    async with verifier() as (worker, connect):
        hostile, other = connect(), connect()
        await other.send(open_verify(FINE))
        await until(lambda: other.of(SessionStarted))
        each = 2 + SAMPLING.max_tokens + 4
        count = CAPACITY // each + 500
        for start in range(0, count, 1000):
            await hostile.send(*(open_verify(n) for n in range(start, start + 1000)))
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
        await hostile.send(*[open_draft(n, method="ngram") for n in range(200)])
        await until(lambda: len(hostile.failures()) + len(hostile.of(SessionStarted)) == 200)
        assert set(hostile.failures()) == {t.FailureReason.CAPACITY}
        assert len(hostile.of(SessionStarted)) == 100
        await hostile.send(*(EndSession(n) for n in range(50)))
        await hostile.send(*(open_draft(n, method="ngram") for n in range(200, 250)))
        await until(lambda: len(hostile.of(SessionStarted)) == 150)
        hostile.call.cancel()
        await until(lambda: worker.host.progress().sessions == 0)


IMPOSSIBLE_OPENS = {
    "no prompt": {"prompt": ()},
    "a huge prompt": {"prompt": (1,) * 200_000},
    "tokens beyond the vocabulary": {"prompt": (2**32 - 1,)},
    "an output beyond the end": {"output": (1,) * 500},
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
        await peer.send(open_verify(FINE), open_verify(**fields))
        await until(peer.failures)
        assert peer.failures() == [t.FailureReason.INVALID]
        await still_serves(peer)
        await until(lambda: worker.engine.kv_tokens_used == 0)
    async with drafter() as (worker, connect):
        peer = connect()
        await peer.send(open_draft(FINE), open_draft(**fields))
        await until(lambda: peer.failures() or len(peer.of(SessionStarted)) == 2)
        await until(lambda: FINE in drafted_for(peer))
        assert not {t.FailureReason.INTERNAL} & set(peer.failures())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def step(*rows):
    return step_frame(StepFrame(1), rows)


def row(position, *tokens, handle=1, opening=1):
    """What a step brought, the last token by the target itself."""
    return StepRow(handle, opening, position, tokens, len(tokens) - 1, tokens[:-1])


STRANGE_STEPS = [
    step(row(5, 1)),
    step(row(2**32 - 1, 1)),
    step(row(0, 11, opening=2**32 - 1)),
    step(row(0, 2**32 - 1)),
    step(row(0, *[1] * 200)),
    step_frame(StepFrame(1), [row(0, 1)], [255]),
    SetWindow(1, 2**32 - 1),
    SetWindow(99, 5),
    EndSession(99),
    step(row(0, 1, handle=99)),
    TextStates(1, 1, 2**32 - 1, b"1234"),
    open_draft(num_candidates=0),
    open_draft(2, num_candidates=2**32 - 1),
    open_draft(3, method=",".join(["model"] * 1000)),
]


@pytest.mark.parametrize("command", STRANGE_STEPS, ids=range(len(STRANGE_STEPS)))
async def test_commands_that_do_not_fit_leave_the_drafter_serving(command, caplog):
    async with drafter() as (worker, connect):
        hostile, other = connect(), connect()
        await hostile.send(open_draft(), command, command)
        await other.send(open_draft(FINE))
        await until(lambda: FINE in drafted_for(other))
        hostile.call.cancel()
        other.call.cancel()
        await until(lambda: worker.host.progress().sessions == 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def hypothesis(tokens=(3,), position=0, handle=1, number=1, **tree):
    draft = t.DraftTree(tuple(tokens), **tree)
    name = DraftName(1, number)
    return draft_frame([DraftRow(handle, name, position, t.EMPTY_HASH, draft)])


STRANGE_DRAFTS = [
    hypothesis([12]),
    hypothesis([1] * 30_000),
    hypothesis([1, 2], parents=(-1, -7)),
    hypothesis([3], position=2**32 - 1),
    hypothesis([3], handle=99),
    hypothesis([3], q=(t.SparseRow((1,) * 9, (0.5,) * 9),), proposal=t.Proposal.SAMPLED),
    hypothesis([3], proposal=t.Proposal.SAMPLED),
    grants([(1, 2**32 - 1), (99, 5)]),
    SetWindow(1, 2**32 - 1),
]


@pytest.mark.parametrize("command", STRANGE_DRAFTS, ids=range(len(STRANGE_DRAFTS)))
async def test_drafts_that_do_not_fit_leave_the_verifier_serving(command, caplog):
    async with verifier() as (worker, connect):
        hostile, other = connect(), connect()
        await hostile.send(open_verify(limit=2, mode=t.VerifyMode.STANDARD), command, command)
        await other.send(open_verify(FINE))
        await still_serves(other)
        hostile.call.cancel()
        await until(lambda: worker.host.progress().sessions == 0)
        assert worker.engine.kv_tokens_used == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_drafts_without_end_for_a_session_that_stands_still_hold_no_more_than_one():
    """Without credit nothing is verified: what is held is bounded."""
    engine = table_engine()
    core = RunningCore(engine, emit=lambda *_: None, worker_id="v1")
    core.handle(1, open_verify(limit=0))
    while core.step():
        pass
    [session] = core._sessions.every.values()
    hashed = t.EMPTY_HASH
    for place in range(3000):
        name = DraftName(1, 1)
        core.handle(1, draft_frame([DraftRow(1, name, place, hashed, t.DraftTree((3,)))]))
        hashed = t.extend_hash(hashed, (3,))
    assert len(session.mailbox) == MOST_HELD


async def test_a_message_of_too_many_commands_ends_the_link():
    async with verifier() as (_, connect):
        peer = connect()
        await peer.send(*[EndSession(1)] * ((1 << 16) + 1))
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
        await other.send(open_verify(FINE))
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
