"""An orchestrator's link to workers that are served for real, and to liars."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain

import grpc
import pytest
from paceline.worker.v1 import verifier_pb2

from orchestrator.workers.link import LinkLimits, WorkerLink
from services.contract import types as t
from services.contract import worker_messages as w
from services.contract.frames import (
    DraftName,
    DraftRow,
    StepBytes,
    StepFrame,
    StepRow,
    draft_frame,
    grants,
    step_frame,
    step_rows,
)
from services.contract.states import state_bytes
from services.contract.wire import VERIFIER_LINK, encode_description
from services.runtime.host import WorkerHost
from services.runtime.serving import Served, ServingOptions, serve_worker
from services.runtime.serving.links import Outbox
from services.runtime.state_room import portion
from services.scheduling.kv_reserve import SPARE_TOKENS
from tests.waiting import until

WORKER = t.WorkerDescription(
    "w1",
    t.Role.VERIFIER,
    vocab_size=12,
    max_context_length=64,
)
BUNDLE = t.TokenizerBundle("fingerprint", "x" * (2 << 20))
START = w.StartVerify(
    1, 1, "s", 1, (1, 2), (3,), 9, t.VerifyMode.GREEDY, t.ResolvedSampling(), 0, 4
)
FRAME = step_frame(StepFrame(1), [StepRow(1, 1, 1, (6,))])
DRAFTS = draft_frame([DraftRow(1, DraftName(1, 1), 1, 9, t.DraftTree((4, 5)))])


class Core:
    """Takes commands down, and says what it is told to."""

    def __init__(self, emit):
        self.emit, self.got, self.dropped, self.says = emit, [], [], []

    def handle(self, link, command, _arrived):
        self.got.append(command)
        for event in self.says:
            self.emit(link, event)

    def patience(self):
        return 0.0

    def step(self):
        return False

    def drop_link(self, link):
        self.dropped.append(link)

    def progress(self):
        return t.Progress()

    def describe(self):
        return WORKER


class Ends:
    """A link's ends: what came of it, why it went down."""

    def __init__(self):
        self.heard, self.ups, self.downs, self.faulty = [], 0, [], []

    async def on_up(self, _link):
        self.ups += 1

    def on_event(self, _link, event):
        self.heard.append(event)

    def on_down(self, link, reason):
        self.downs.append(reason)
        self.faulty.append(link.faulty)


@asynccontextmanager
async def linked(address, role=t.Role.VERIFIER, limits=None):
    ends = Ends()
    link = WorkerLink(
        address,
        role,
        "o1",
        on_up=ends.on_up,
        on_event=ends.on_event,
        on_down=ends.on_down,
        limits=limits,
    )
    link.start()
    try:
        yield link, ends
    finally:
        await link.close()


@asynccontextmanager
async def served(worker=WORKER):
    cores = []

    def make(emit):
        cores.append(Core(emit))
        return cores[0]

    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
    bundle = BUNDLE if worker.role is t.Role.VERIFIER else None
    role = Served(WorkerHost(make), worker, bundle, (t.StepTime(1, 6.0),) if bundle else ())
    serving = asyncio.create_task(
        serve_worker(
            ServingOptions(grace=0.1), role, on_ready=lambda at: address.set_result(at), stop=stop
        )
    )
    yield await address, cores[0]
    stop.set()
    assert await serving == 0


async def test_what_is_sent_in_one_turn_arrives_in_order_with_frames_behind():
    async with served() as (address, core):
        async with linked(address) as (link, ends):
            await until(lambda: ends.ups)
            limits = grants([(1, 9)])
            for command in (DRAFTS, limits, START, w.SetWindow(1, 2), DRAFTS):
                link.send(command)
            await until(lambda: len(core.got) == 5)
            assert core.got == [START, w.SetWindow(1, 2), limits, DRAFTS, DRAFTS]
            assert link.description.protocol_max == 2
        await until(lambda: core.dropped == [1])


async def test_frames_come_before_what_was_said_with_them():
    async with served() as (address, core), linked(address) as (link, ends):
        gone = w.SessionGone(2, 1, t.FailureReason.INTERNAL, "why")
        waiting = w.Waiting(b"\2\0\0\0", b"\2")
        core.says = [w.SessionStarted(1, 1, 1, 2.0), FRAME, gone, waiting]
        await until(lambda: ends.ups)
        link.send(START)
        await until(lambda: len(ends.heard) == 4)
        assert ends.heard == [FRAME, core.says[0], gone, waiting]


async def test_a_drafter_gets_steps_and_sends_drafts():
    drafter = replace(WORKER, role=t.Role.DRAFTER)
    async with (
        served(drafter) as (address, core),
        linked(address, role=drafter.role) as (link, ends),
    ):
        core.says = [DRAFTS]
        await until(lambda: ends.ups)
        link.send(FRAME)
        await until(lambda: ends.heard)
        assert (core.got, ends.heard) == ([FRAME], [DRAFTS])


async def test_a_verifier_gives_its_tokenizer():
    async with served() as (address, _), linked(address) as (link, ends):
        await until(lambda: ends.ups)
        assert await link.fetch_tokenizer() == BUNDLE


async def test_sessions_are_counted_by_their_handles():
    async with served() as (address, core), linked(address) as (link, ends):
        await until(lambda: ends.ups)
        link.send(START)
        assert (link.placed.fresh, link.placed.tokens) == (1, 3 + 4 + SPARE_TOKENS)
        core.says = [w.SessionGone(1, 1, t.FailureReason.CAPACITY)]
        link.send(w.SetWindow(1, 1))
        await until(lambda: ends.heard)
        assert link.placed.tokens == 0


async def told_of_once(address, complaint, caplog):
    async with linked(address) as (link, ends):
        await until(lambda: complaint in link.problem)
        await asyncio.sleep(0.3)
        assert caplog.text.count(complaint) == 1
        assert ends.ups == 0


async def test_a_worker_of_another_protocol_is_told_of_once(caplog):
    async with served(replace(WORKER, protocol_min=3, protocol_max=4)) as (address, _):
        await told_of_once(address, "it speaks protocol 3 to 4, this orchestrator 2", caplog)


async def test_a_worker_of_a_version_with_another_service_is_told_of_once(caplog):
    async with liar(service="paceline.v1.VerifierService") as address:
        await told_of_once(address, "no verifier of protocol 2 serves there", caplog)


async def test_a_link_that_greets_in_another_protocol_is_refused():
    async with served() as (address, _), grpc.aio.insecure_channel(address) as channel:
        stub = channel.stream_stream(
            "/paceline.worker.v1.VerifierService/Link",
            verifier_pb2.VerifierServiceLinkRequest.SerializeToString,
            verifier_pb2.VerifierServiceLinkResponse.FromString,
        )
        call = stub()
        await call.write(VERIFIER_LINK.encode_request(hello=t.LinkHello("o", 1)))
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "speaks protocol 2 to 2, the peer 1" in await call.details()


# --- workers that lie ---------------------------------------------------------------------


@asynccontextmanager
async def liar(*messages, service="paceline.worker.v1.VerifierService"):
    """A verifier that says these on every link, and then nothing."""

    async def describe(_request, _context):
        return verifier_pb2.VerifierServiceDescribeResponse(
            worker=encode_description(WORKER)
        ).SerializeToString()

    async def serve(_requests, _context):
        for message in messages:
            yield message.SerializeToString()
        await asyncio.sleep(3600)

    server = grpc.aio.server()
    methods = {
        "Describe": grpc.unary_unary_rpc_method_handler(describe),
        "Link": grpc.stream_stream_rpc_method_handler(serve),
    }
    handler = grpc.method_handlers_generic_handler(service, methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


FALSE = {
    "unequal columns": (replace(FRAME, positions=b""), "StepFrame.positions: 0 bytes for 1"),
    "no token": (replace(FRAME, counts=b"\0", tokens=b""), "StepFrame.counts: a step brings no"),
    "accepted without a draft": (
        replace(FRAME, accepted=b"\1", ends=b"\3"),
        "StepFrame.accepted: more than were drafted",
    ),
    "no opening": (w.SessionStarted(1, 0), "SessionStarted.opening: they begin with 1"),
}


@pytest.mark.parametrize("lie", FALSE)
async def test_a_frame_that_cannot_be_ends_the_link_with_its_reason(lie, caplog):
    event, complaint = FALSE[lie]
    message = VERIFIER_LINK.encode_response([FRAME, event])
    async with liar(message) as address, linked(address) as (_, ends):
        await until(lambda: len(ends.downs) > 1)
        assert all(complaint in reason for reason in ends.downs)
        assert ends.heard == []
        assert set(ends.faulty) == {True}
    assert complaint in caplog.text


async def test_nothing_of_a_message_counts_once_the_link_is_cut():
    message = VERIFIER_LINK.encode_response([FRAME, FRAME, w.SessionStarted(1, 1)])
    async with liar(message) as address, linked(address) as (link, ends):
        heard = []

        def judge(link, event):
            heard.append((ends.ups, event))
            link.cut("it runs back")

        link._on_event = judge
        await until(lambda: len(ends.downs) > 1)
    assert set(ends.downs[:-1]) == {"it runs back"}
    assert heard == [(up, FRAME) for up in range(1, len(heard) + 1)]


async def test_a_silent_worker_is_given_up():
    limits = LinkLimits(silence=0.2)
    async with liar() as address, linked(address, limits=limits) as (link, ends):
        await until(lambda: ends.ups)
        while not ends.downs:
            link._awake.beat(link._clock())
            link.check()
            await asyncio.sleep(0.02)
        assert "no message for" in ends.downs[0]
        assert not ends.faulty[0]


async def test_a_worker_that_does_not_read_is_cut_off_by_sessions_not_by_messages():
    async with liar() as address, linked(address, limits=LinkLimits(outbox=100)) as (link, ends):
        await until(lambda: ends.ups)
        for _ in range(2):
            link.send(grants([(handle, 1) for handle in range(50)]))
        assert link.up
        link.send(w.EndSession(1))
        assert (link.up, link.problem) == (False, "it does not read its commands")


# --- states on their way ------------------------------------------------------------------


def laden(*named, step=1, states=()):
    rows = [StepRow(one, 1, step, (6,)) for one in named]
    frame = step_frame(StepFrame(step, stood_out=(3,)), rows)
    return replace(frame, states=tuple(StepBytes(named.index(one), b"1234") for one in states))


def of(session, messages):
    """What messages say of a session: positions of texts and steps."""
    told = [
        [row.position for row in step_rows(one) if row.handle == session]
        if isinstance(one, StepFrame)
        else [one.position] * (one.handle == session)
        for one in messages
    ]
    return list(chain.from_iterable(told))


def test_a_frame_goes_in_two_parts_where_states_of_some_have_to_wait():
    texts = [w.TextStates(1, 1, place, b"1234") for place in (0, 1)]
    frames = [laden(1, 2, step=2), laden(3, step=3), laden(2, step=4)]
    now, later = portion([*texts, *frames], 4)
    assert [of(session, now) for session in (1, 2, 3)] == [[0], [2, 4], [3]]
    assert [of(session, later) for session in (1, 2, 3)] == [[1, 2], [], []]
    assert [own.stood_out for own in (*now[:3], later[-1])] == [(3,), (3,), (3,), ()]
    assert now[3:] == texts[:1]
    assert portion(later, 4) == (later, [])


def test_states_in_frames_leave_in_portions_and_in_order():
    frames = [laden(1, 2, step=step, states=[1]) for step in range(3)]
    now, later = portion(frames, 8)
    assert [of(session, now) for session in (1, 2)] == [[0, 1], [0, 1, 2]]
    assert [of(session, later) for session in (1, 2)] == [[2], []]
    assert sum(map(state_bytes, now)) == 8
    assert sum(map(state_bytes, later)) == 4


async def test_of_who_waits_the_newest_news_counts():
    outbox = Outbox()
    first, second = w.Waiting(b"\1\0\0\0", b"\1"), w.Waiting(b"\2\0\0\0", b"\2")
    outbox.put([first, FRAME])
    outbox.put([second])
    outbox.report(t.Progress(3))
    assert await outbox.take() == [FRAME, second, t.Progress(3)]
    outbox.put([first])
    assert await outbox.take() == [first]
