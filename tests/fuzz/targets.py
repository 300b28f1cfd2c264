"""What is fuzzed: every method of every service, and a good message of each to start from."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from google.protobuf.message import Message
from paceline.v1 import inference_pb2
from paceline.worker.v1 import drafter_pb2, verifier_pb2
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from services.contract import types as t
from services.contract import worker_messages as w
from services.contract.frames import (
    DraftName,
    DraftRow,
    StepEnd,
    StepFrame,
    StepRow,
    draft_frame,
    grants,
    step_frame,
)
from services.contract.wire import DRAFTER_LINK, VERIFIER_LINK
from tests.fuzz.messages import altered, arbitrary, mutated

CANARY = "canary"
"""Stands in every good prompt: it must not be found in a log."""


@dataclass(frozen=True, slots=True)
class Target:
    """One method. `good`: messages that are served, in an order that makes sense.

    `served`: whether anything is; else every readable message is UNIMPLEMENTED.
    """

    path: str
    request: type[Message]
    good: tuple[Message, ...]
    link: bool = False
    most: int = 1
    """Messages that one call sends."""
    served: bool = True

    @property
    def service(self) -> str:
        """The name of its service, with the package."""
        return self.path.split("/")[1]

    def message(self, random: Random) -> bytes:
        """Something that may be sent: good, any, one field off, or broken bytes."""
        good = random.choice(self.good)
        match random.randrange(8):
            case 0:
                return good.SerializeToString()
            case 1 | 2:
                return arbitrary(self.request, random).SerializeToString()
            case 3 | 4 | 5:
                return altered(good, random).SerializeToString()
            case _:
                others = [one.SerializeToString() for one in self.good]
                return mutated(good.SerializeToString(), random, others)

    def call(self, random: Random) -> list[bytes]:
        """The messages of one call; a link begins well, as a rule."""
        if not self.link:
            return [self.message(random)]
        count = random.randrange(1, self.most + 1)
        first = self.message(random) if random.random() < 0.1 else _HELLO[self.request]
        return [first, *(self.message(random) for _ in range(count - 1))]


def _method(service: str, kind: type[Message], *good: Message, **fields: Any) -> Target:
    """Named after its request, of which `fields` make a good one."""
    name = kind.__name__.removeprefix(service).removesuffix("Request")
    return Target(f"/{_package(kind)}.{service}/{name}", kind, good or (kind(**fields),))


def _link(service: str, request: type[Message], codec: Any, commands: Sequence[Any]) -> Target:
    good = [codec.encode_request([command]) for command in commands]
    good.append(codec.encode_request(commands))
    path = f"/{_package(request)}.{service}/Link"
    return Target(path, request, tuple(good), link=True, most=8)


def _package(kind: type[Message]) -> str:
    return kind.DESCRIPTOR.file.package


_generate, _sampling = inference_pb2.GenerateRequest, inference_pb2.SamplingParams
_SPOKEN = inference_pb2.Message(role="user", content=f"abc {CANARY}")
_MANY = {
    "max_tokens": 6, "temperature": 0.8, "top_p": 0.9, "top_k": 5, "stop": ["kk"],
    "stop_token_ids": [4], "logit_bias": {3: 1.5}, "logprobs": 2,
}  # fmt: skip
_GOOD_REQUESTS = (
    _generate(prompt=f"abcd {CANARY}", sampling=_sampling(max_tokens=8, temperature=0.0)),
    _generate(
        request_id="s1",
        tokens=inference_pb2.TokenIds(ids=[1, 2, 3]),
        sampling=_sampling(**_MANY, seed=7, frequency_penalty=0.1),
        include_rounds=True,
    ),
    _generate(
        request_id="s2",
        model="table",
        conversation=inference_pb2.Conversation(messages=[_SPOKEN]),
        sampling=_sampling(max_tokens=5, min_tokens=2, repetition_penalty=1.1),
        speculation=inference_pb2.SpeculationParams(
            method="model", num_speculative_tokens=4, num_candidates=2,
            rejection_sample_method=inference_pb2.REJECTION_SAMPLE_METHOD_STANDARD,
        ),
        ephemeral=True,
    ),
)  # fmt: skip
_SAMPLING = t.ResolvedSampling(max_tokens=20, temperature=0.7, logprobs=1, logit_bias=((2, 1.0),))
_TREE = t.DraftTree((1, 2, 3), (-1, -1, 0))
_DRAWN = t.DraftTree(
    (5, 6), None, (t.SparseRow((5, 6), (0.5, 0.5)), t.SparseRow((6,), (1.0,))), t.Proposal.SAMPLED
)
_SCORED = inference_pb2.ScoreRequest(
    prompt=f"abcd {CANARY}",
    continuations=[
        inference_pb2.Continuation(text="ab"),
        inference_pb2.Continuation(text=" cd"),
    ],
    logprobs=2,
)

INFERENCE = (
    _method("InferenceService", inference_pb2.GenerateRequest, *_GOOD_REQUESTS),
    _method("InferenceService", inference_pb2.ResumeRequest, session_id="s1", offset=1),
    _method("InferenceService", inference_pb2.AbortRequest, session_id="s1"),
    _method("InferenceService", inference_pb2.GetSessionRequest, session_id="s2"),
    _method("InferenceService", inference_pb2.ScoreRequest, _SCORED),
    _method("InferenceService", inference_pb2.GetModelInfoRequest),
    _method("InferenceService", inference_pb2.GetServerInfoRequest),
)

_NAMED = DraftName(1, 1)
_CHAIN = DraftRow(1, _NAMED, 0, t.EMPTY_HASH, t.DraftTree((4, 5)))
_LAWFUL = _CHAIN._replace(tree=_DRAWN)
_STEPPED = StepRow(1, 1, 0, (4, 5), 1, (4,), (), StepEnd.BONUS, _NAMED)
_RUN_COMMANDS = (
    w.StartVerify(
        1, 1, "s1", 1, (1, 2, 3), (), 9, t.VerifyMode.BLOCK, _SAMPLING, 5, 8, drafted_for=True
    ),
    w.StartVerify(
        2,
        1,
        "s2",
        1,
        (3,),
        (1,),
        4,
        t.VerifyMode.COUPLED,
        _SAMPLING,
        5,
        8,
        depth=4,
        num_candidates=2,
        top_rows=2,
        drafted_for=True,
    ),
    grants([(1, 20), (2, 6)]),
    draft_frame([_LAWFUL, DraftRow(2, _NAMED, 0, t.EMPTY_HASH, _TREE)]),
    w.SetWindow(2, 1),
    w.SetDraftedFor(2, True),
    w.EndSession(1),
)
_TAIL_COMMANDS = (
    w.StartDraft(1, 1, "s1", 1, (1, 2, 3, 1, 2), (), t.VerifyMode.BLOCK, _SAMPLING, 5, 4),
    w.StartDraft(
        2, 1, "s2", 1, (1, 2, 3, 1, 2), (3,), t.VerifyMode.GREEDY, _SAMPLING, 5, 4,
        num_candidates=3, method="model,ngram", phrase_scope="scope", vocab_size=12,
    ),
    step_frame(StepFrame(1), [_STEPPED], [3]),
    w.SetWindow(1, 6),
    w.TextStates(1, 1, 0, b"1234"),
    w.EndSession(1),
)  # fmt: skip
_RUN, _TAIL = verifier_pb2.VerifierServiceLinkRequest, drafter_pb2.DrafterServiceLinkRequest
VERIFIER = (
    _method("VerifierService", verifier_pb2.VerifierServiceDescribeRequest),
    _method("VerifierService", verifier_pb2.VerifierServiceGetTokenizerRequest),
    _link("VerifierService", _RUN, VERIFIER_LINK, _RUN_COMMANDS),
)
DRAFTER = (
    _method("DrafterService", drafter_pb2.DrafterServiceDescribeRequest),
    _link("DrafterService", _TAIL, DRAFTER_LINK, _TAIL_COMMANDS),
)


def _engine(kind: type[Message], *good: Message, served: bool = True) -> Target:
    path = f"/vllm.grpc.engine.VllmEngine/{kind.__name__.removesuffix('Request')}"
    return Target(path, kind, good or (kind(),), served=served)


_ASKED = vllm_engine_pb2.GenerateRequest
_PARAMS = vllm_engine_pb2.SamplingParams
_GOOD_ASKED = (
    _ASKED(text=f"abcd {CANARY}", sampling_params=_PARAMS(max_tokens=8), stream=True),
    _ASKED(
        request_id="s1",
        tokenized=vllm_engine_pb2.TokenizedInput(original_text=CANARY, input_ids=[1, 2, 3]),
        sampling_params=_PARAMS(**_MANY, seed=-7, n=1),
    ),
)
ENGINE = (
    _engine(_ASKED, *_GOOD_ASKED),
    _engine(vllm_engine_pb2.AbortRequest, vllm_engine_pb2.AbortRequest(request_ids=["s1", "s2"])),
    _engine(vllm_engine_pb2.HealthCheckRequest),
    _engine(vllm_engine_pb2.GetModelInfoRequest),
    _engine(vllm_engine_pb2.GetServerInfoRequest),
    _engine(vllm_engine_pb2.GetLoadsRequest),
    _engine(common_pb2.GetTokenizerRequest),
    _engine(vllm_engine_pb2.EmbedRequest, served=False),
    _engine(common_pb2.FlushCacheRequest, served=False),
    _engine(common_pb2.StartProfileRequest, served=False),
    _engine(common_pb2.StopProfileRequest, served=False),
    _engine(common_pb2.SubscribeKvEventsRequest, served=False),
)
TARGETS = INFERENCE + VERIFIER + DRAFTER + ENGINE

_HELLO: dict[type[Message], bytes] = {
    kind: codec.encode_request(commands[:1], t.LinkHello("fuzz")).SerializeToString()
    for kind, codec, commands in (
        (_RUN, VERIFIER_LINK, _RUN_COMMANDS),
        (_TAIL, DRAFTER_LINK, _TAIL_COMMANDS),
    )
}


def some_calls(random: Random, messages: int) -> list[tuple[Target, list[bytes]]]:
    """Calls of any method with about so many messages in all; those with work come oftener."""
    calls: list[tuple[Target, list[bytes]]] = []
    weights = [4 if target.link or "Generate" in target.path else 1 for target in TARGETS]
    while messages > 0:
        [target] = random.choices(TARGETS, weights)
        calls.append((target, target.call(random)))
        messages -= len(calls[-1][1])
    return calls


def raw_bytes(random: Random) -> bytes:
    """What is no HTTP/2, or begins like it."""
    preface = random.choice((b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"))
    frames = b"".join(_frame(random) for _ in range(random.randrange(4)))
    return preface + random.choice((frames, mutated(frames, random)))


def _frame(random: Random) -> bytes:
    payload = bytes(random.randrange(256) for _ in range(random.choice((0, 4, 6, 40))))
    head = len(payload).to_bytes(3, "big") + bytes([random.randrange(12), random.randrange(256)])
    return head + random.choice((0, 1, 3, 2**31 - 1)).to_bytes(4, "big") + payload
