"""The published client against an in-process server that plays a script."""

import asyncio
import gc
import subprocess
import sys
from pathlib import Path

import grpc
import paceline
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from paceline import Chunk, Client, Complete, FinishReason, Method, Origin, Started
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

PROTOS = Path(__file__).resolve().parents[2] / "protos"

STARTED = pb.Started(session_id="s", prompt_tokens=3, seed=2**63)
ROUND = pb.RoundStats(
    index=1,
    draft_tokens=4,
    accepted_tokens=1,
    rejection_sample_method="REJECTION_SAMPLE_METHOD_GREEDY",
)
CHUNKS = [
    pb.Chunk(
        offset=0, token_ids=[5, 6], text="ab", rounds=[ROUND], pieces=["a", "b"], origins=[1, 3]
    ),
    pb.Chunk(
        offset=2,
        token_ids=[7],
        text="c",
        logprobs=[
            pb.TokenLogprobs(token_id=7, logprob=-0.5, top_token_ids=[7], top_logprobs=[-0.5])
        ],
    ),
]
COMPLETE = pb.Complete(
    finish_reason=pb.FINISH_REASON_STOP,
    usage=pb.Usage(prompt_tokens=3, completion_tokens=3),
    speculation=pb.SpecDecodeMetrics(acceptance_histogram=[1, 2], block_efficiency=1.5),
    text="abc",
    matched_stop=pb.MatchedStop(token_id=2),
)


def script(kind):
    return [kind(started=STARTED), *(kind(chunk=c) for c in CHUNKS), kind(complete=COMPLETE)]


class FakeService(pb_grpc.InferenceServiceServicer):
    """Streams its script; waits at `hold` before the message of that index."""

    def __init__(self):
        self.requests = []
        self.aborted = []
        self.remaining = []
        self.script = script(pb.GenerateResponse)
        self.hold = None
        self.error = None
        self.was_aborted = asyncio.Event()

    async def Generate(self, request, context):
        self.requests.append(request)
        self.remaining.append(context.time_remaining())
        for index, message in enumerate(self.script):
            if index == self.hold:
                await asyncio.Event().wait()
            yield message
        if self.error is not None:
            await self.fail(context)

    async def Resume(self, request, context):
        self.requests.append(request)
        for message in script(pb.ResumeResponse):
            yield message

    async def Abort(self, request, context):
        self.aborted.append(request.session_id)
        self.was_aborted.set()
        if self.error is not None:
            await self.fail(context)
        return pb.AbortResponse()

    async def GetSession(self, request, context):
        return pb.GetSessionResponse(
            session_id=request.session_id, status=pb.SESSION_STATUS_PAUSED, committed_tokens=4
        )

    async def GetModelInfo(self, request, context):
        return pb.GetModelInfoResponse(model="m", vocab_size=9, eos_token_ids=[1, 2])

    async def GetServerInfo(self, request, context):
        workers = [pb.WorkerInfo(worker_id="w", role="drafter", methods=["ngram"])]
        return pb.GetServerInfoResponse(version="1", workers=workers)

    async def fail(self, context):
        raised = rpc_status.to_status(self.error)
        await context.abort(raised.code, raised.details, raised.trailing_metadata)


@pytest.fixture
async def service():
    return FakeService()


@pytest.fixture
async def client(service):
    server = grpc.aio.server()
    pb_grpc.add_InferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}") as client:
        yield client
    await server.stop(None)


async def test_iterating_gives_typed_events_in_order(client):
    events = [event async for event in client.generate("hi", include_rounds=True)]
    assert [type(event) for event in events] == [Started, Chunk, Chunk, Complete]
    assert events[0] == Started("s", 3, 2**63)
    assert events[1].origins == (Origin.ACCEPTED, Origin.BONUS)
    assert events[1].rounds[0].rejection_sample_method is Method.GREEDY
    assert (events[1].pieces, events[1].rounds[0].draft_tokens) == (("a", "b"), 4)
    assert events[2].logprobs[0].top_logprobs == (-0.5,)
    assert events[3].speculation.acceptance_histogram == (1, 2)
    assert events[3].matched_stop == 2


async def test_awaiting_gives_the_whole_generation(client):
    generation = await client.generate("hi", request_id="mine")
    assert generation.text == "abc"
    assert generation.token_ids == (5, 6, 7)
    assert generation.finish_reason is FinishReason.STOP
    assert generation.usage.completion_tokens == 3
    assert generation.seed == 2**63
    assert generation.session_id == "mine"
    assert len(generation.logprobs) == len(generation.rounds) == 1


async def test_a_stream_iterated_in_part_can_be_awaited_for_the_whole(client, service):
    stream = client.generate("hi")
    async for event in stream:
        if isinstance(event, Chunk):
            break
    assert (await stream).token_ids == (5, 6, 7)
    assert (await stream).text == "abc"
    assert len(service.requests) == 1
    assert service.aborted == []


async def test_every_argument_arrives_in_its_field(client, service):
    await client.generate(
        messages=[{"role": "user", "content": "hi"}],
        request_id="r",
        model="m",
        temperature=0.0,
        top_p=0.5,
        top_k=0,
        min_p=0.25,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        repetition_penalty=1.5,
        max_tokens=7,
        min_tokens=1,
        stop="x",
        stop_token_ids=[3],
        ignore_eos=True,
        seed=2**64 - 1,
        logit_bias={4: -1.0},
        logprobs=0,
        choice=["a", "b"],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        method="ngram",
        num_speculative_tokens=5,
        rejection_sample_method="coupled",
        disable_speculative_decoding=False,
        num_candidates=2,
        include_rounds=True,
        ephemeral=True,
    )
    assert service.requests == [
        pb.GenerateRequest(
            request_id="r",
            model="m",
            conversation=pb.Conversation(messages=[pb.Message(role="user", content="hi")]),
            sampling=pb.SamplingParams(
                temperature=0.0,
                top_p=0.5,
                top_k=0,
                min_p=0.25,
                frequency_penalty=0.5,
                presence_penalty=0.25,
                repetition_penalty=1.5,
                max_tokens=7,
                min_tokens=1,
                stop=["x"],
                stop_token_ids=[3],
                ignore_eos=True,
                seed=2**64 - 1,
                logit_bias={4: -1.0},
                logprobs=0,
                choice=pb.Choice(options=["a", "b"]),
                include_stop_str_in_output=True,
                skip_special_tokens=False,
            ),
            speculation=pb.SpeculationParams(
                method="ngram",
                num_speculative_tokens=5,
                rejection_sample_method=pb.REJECTION_SAMPLE_METHOD_COUPLED,
                disable_speculative_decoding=False,
                num_candidates=2,
            ),
            include_rounds=True,
            ephemeral=True,
        )
    ]


async def test_what_is_left_out_is_absent_and_the_id_is_made_up(client, service):
    await client.generate("hi", temperature=None)
    await client.generate(tokens=[1, 2])
    first, second = service.requests
    assert len(first.request_id) == 32
    assert first.request_id != second.request_id
    assert first == pb.GenerateRequest(request_id=first.request_id, prompt="hi")
    assert second == pb.GenerateRequest(
        request_id=second.request_id, tokens=pb.TokenIds(ids=[1, 2])
    )


async def test_an_empty_input_is_sent_for_the_server_to_judge(client, service):
    await client.generate(tokens=[])
    await client.generate(messages=[])
    await client.generate("")
    inputs = [request.WhichOneof("input") for request in service.requests]
    assert inputs == ["tokens", "conversation", "prompt"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_tokens": -1}, "sampling.max_tokens"),
        ({"top_k": 1.5}, "sampling.top_k"),
        ({"seed": 2**64}, "sampling.seed"),
        ({"stop_token_ids": [-1]}, "sampling.stop_token_ids"),
        ({"num_candidates": "many"}, "speculation.num_candidates"),
        ({"rejection_sample_method": "greedy"}, "speculation.rejection_sample_method"),
    ],
)
async def test_a_value_its_field_cannot_hold_is_refused_by_name(client, service, options, field):
    with pytest.raises(paceline.InvalidArgument) as caught:
        client.generate("hi", **options)
    assert [violation.field for violation in caught.value.violations] == [field]
    assert service.requests == []


@pytest.mark.parametrize(
    "arguments", [{}, {"prompt": "a", "tokens": [1]}, {"prompt": "a", "temprature": 1.0}]
)
async def test_wrong_arguments_are_a_type_error(client, arguments):
    with pytest.raises(TypeError):
        client.generate(**arguments)


async def test_a_deadline_is_sent_and_kept(client, service):
    service.hold = 2
    with pytest.raises(paceline.DeadlineExceeded):
        await client.generate("hi", timeout=0.2)
    assert 0 < service.remaining[0] <= 0.2
    await asyncio.sleep(0.05)
    assert service.aborted == []


async def test_the_clients_own_timeout_holds_for_calls_without_one(client, service):
    client._timeout = 50.0
    await client.generate("hi")
    await client.generate("hi", timeout=20.0)
    assert 40 < service.remaining[0] <= 50
    assert service.remaining[1] < 30


async def wait_for_abort(service, session):
    async with asyncio.timeout(20):
        await service.was_aborted.wait()
    assert service.aborted == [session]


async def test_breaking_off_the_loop_aborts_the_session(client, service):
    service.hold = 2
    async for _ in client.generate("hi", request_id="mine"):
        break
    await wait_for_abort(service, "mine")


async def test_dropping_a_stream_midway_aborts_without_the_cycle_collector(client, service):
    gc.disable()
    try:
        stream = client.generate("hi", request_id="mine")
        await anext(aiter(stream))
        del stream
        await wait_for_abort(service, "mine")
    finally:
        gc.enable()


async def test_cancelling_the_caller_aborts_the_session(client, service):
    service.hold = 2

    async def caller():
        return await client.generate("hi", request_id="mine")

    task = asyncio.create_task(caller())
    while not service.requests:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_for_abort(service, "mine")


async def test_leaving_the_stream_block_early_aborts_before_the_client_closes(client, service):
    async with client.generate("hi", request_id="mine") as stream:
        await anext(aiter(stream))
    await client.close()
    assert service.aborted == ["mine"]


async def test_a_caller_cancelled_between_events_aborts_before_the_client_closes(client, service):
    reached = asyncio.Event()

    async def caller():
        async with client:
            async for _ in client.generate("hi", request_id="mine"):
                reached.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(caller())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert service.aborted == ["mine"]


async def test_a_stream_left_at_its_end_is_not_aborted(client, service):
    async for event in client.generate("hi"):
        if isinstance(event, Complete):
            break
    await asyncio.sleep(0.05)
    assert service.aborted == []


async def test_a_stream_that_is_never_used_costs_nothing(client, service):
    client.generate("hi")
    await asyncio.sleep(0.02)
    assert (service.requests, service.aborted) == ([], [])


async def test_a_stream_without_its_end_is_an_error(client, service):
    service.script = service.script[:2]
    with pytest.raises(paceline.Unavailable, match="cut short"):
        await client.generate("hi")


async def test_an_event_of_a_newer_server_is_skipped(client, service):
    service.script.insert(1, pb.GenerateResponse())
    assert (await client.generate("hi")).text == "abc"


async def test_resume_asks_from_the_offset(client, service):
    generation = await client.resume("s", 2)
    assert service.requests == [pb.ResumeRequest(session_id="s", offset=2)]
    assert generation.text == "abc"


async def test_questions_are_answered_with_records(client, service):
    session = await client.get_session("s")
    assert (session.status, session.committed_tokens) == (paceline.SessionStatus.PAUSED, 4)
    assert (await client.model_info()).eos_token_ids == (1, 2)
    assert (await client.server_info()).workers[0].methods == ("ngram",)
    await client.abort("s")
    assert service.aborted == ["s"]


def rich(code, *details):
    status = status_pb2.Status(code=code.value[0], message="said so")
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


TYPED = {
    "INVALID_ARGUMENT": paceline.InvalidArgument,
    "NOT_FOUND": paceline.NotFound,
    "ALREADY_EXISTS": paceline.AlreadyExists,
    "OUT_OF_RANGE": paceline.OutOfRange,
    "FAILED_PRECONDITION": paceline.FailedPrecondition,
    "ABORTED": paceline.Aborted,
    "DATA_LOSS": paceline.DataLoss,
    "RESOURCE_EXHAUSTED": paceline.ResourceExhausted,
    "DEADLINE_EXCEEDED": paceline.DeadlineExceeded,
    "UNAUTHENTICATED": paceline.Unauthenticated,
    "PERMISSION_DENIED": paceline.PermissionDenied,
    "INTERNAL": paceline.Internal,
    "UNIMPLEMENTED": paceline.Internal,
}


@pytest.mark.parametrize("name", TYPED)
async def test_a_status_becomes_its_typed_error(client, service, name):
    code = grpc.StatusCode[name]
    service.error = rich(code, error_details_pb2.ErrorInfo(reason="WHY", domain="paceline"))
    with pytest.raises(paceline.PacelineError, match="said so") as caught:
        await client.generate("hi")
    assert type(caught.value) is TYPED[name]
    assert (caught.value.code, caught.value.reason) == (code, "WHY")
    assert service.aborted == []


async def test_a_refusal_says_which_field_and_when_to_come_back(client, service):
    violation = error_details_pb2.BadRequest.FieldViolation(
        field="sampling.top_p", description="no"
    )
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    request = error_details_pb2.BadRequest(field_violations=[violation])
    service.error = rich(grpc.StatusCode.RESOURCE_EXHAUSTED, retry, request)
    with pytest.raises(paceline.ResourceExhausted) as caught:
        await client.abort("s")
    assert caught.value.retry_after == 1.5
    assert caught.value.violations == (paceline.FieldViolation("sampling.top_p", "no"),)


async def test_nobody_there_is_unavailable():
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(paceline.Unavailable):
            await client.generate("hi")


async def test_a_closed_client_says_so(client):
    await client.close()
    with pytest.raises(RuntimeError, match="closed"):
        await client.model_info()


def test_plaintext_beyond_loopback_is_asked_for_by_name():
    with pytest.raises(ValueError, match="insecure=True"):
        Client("10.0.0.1:50051")
    Client("10.0.0.1:50051", insecure=True)
    Client("10.0.0.1:50051", ca=b"pem")


def test_a_client_may_be_made_outside_the_event_loop():
    assert isinstance(Client("localhost:1"), Client)


def run_without_checkout(*arguments):
    return subprocess.run(
        [sys.executable, "-S", "-c", *arguments],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_alone_says_that_it_holds_the_client_only():
    packages = [path for path in sys.path if path.endswith("site-packages")]
    code = (
        f"import sys; sys.path[:0] = {[str(PROTOS), *packages]!r}\n"
        "from paceline.__main__ import main\n"
        "sys.exit(main())"
    )
    result = run_without_checkout(code)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "client only" in result.stderr


def test_the_client_imports_nothing_of_the_application():
    packages = [path for path in sys.path if path.endswith("site-packages")]
    code = (
        f"import sys; sys.path[:0] = {[str(PROTOS), *packages]!r}\n"
        "import paceline\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "sys.exit(len(roots & {'services', 'orchestrator', 'torch', 'numpy', 'pydantic'}))"
    )
    result = run_without_checkout(code)
    assert (result.returncode, result.stderr) == (0, "")
