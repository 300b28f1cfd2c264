"""An inference service that plays a script."""

import asyncio

from grpc_status import rpc_status
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

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
    speculation=pb.SpecDecodeMetrics(
        acceptance_histogram=[1, 2],
        block_efficiency=1.5,
        sources=[
            pb.DraftSourceMetrics(source="DRAFT_SOURCE_LAWS", num_draft_tokens=4),
            # A number of a version to come.
            pb.DraftSourceMetrics(source=200, num_draft_tokens=2, num_accepted_draft_tokens=1),
        ],
    ),
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
