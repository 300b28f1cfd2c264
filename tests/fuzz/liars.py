"""Workers that lie: a real core whose events are replaced on their way out, and a raw one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
from paceline.v1 import verifier_pb2
from services.drafter.core import DrafterCore
from services.verifier.core import VerifierCore

from services.contract import types as t
from services.contract import wire
from services.contract.types import StepTime
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from tests.fuzz.engine import table_engine
from tests.integration.cluster import Worker, start_worker

Lie = Callable[[Any], Iterable[Any]]
"""What leaves instead of an event."""


async def lying_verifier(name: str, lie: Lie) -> Worker:
    """A verifier whose events go through `lie`."""
    engine = table_engine()
    return await start_worker(
        lambda emit: VerifierCore(engine, emit=_through(lie, emit), worker_id=name), engine.bundle
    )


async def lying_drafter(name: str, lie: Lie) -> Worker:
    """A drafter of chains and trees whose events go through `lie`."""
    methods: dict[str, Any] = {"model": ModelDrafter(table_engine(1)), "ngram": NgramDrafter()}
    return await start_worker(
        lambda emit: DrafterCore(methods, emit=_through(lie, emit), worker_id=name)
    )


def honest(event: Any) -> Iterable[Any]:
    """No lie."""
    return [event]


def _through(lie: Lie, emit: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
    def told(link: int, event: Any) -> None:
        for other in lie(event):
            emit(link, other)

    return told


def of_kind(kind: type, change: Callable[[Any], Any]) -> Lie:
    """Events of one kind are changed; `change` may give one or a list."""

    def lie(event: Any) -> Iterable[Any]:
        if not isinstance(event, kind):
            return [event]
        changed = change(event)
        return changed if isinstance(changed, list) else [changed]

    return lie


def verdicts(**fields: Any) -> Lie:
    """Verdicts with other fields; a function is given the verdict."""
    return of_kind(t.Verdict, lambda verdict: verdict._replace(**_values(verdict, fields)))


def drafts(**fields: Any) -> Lie:
    """Drafts with other fields."""
    return of_kind(t.Draft, lambda draft: draft._replace(**_values(draft, fields)))


def trees(**fields: Any) -> Lie:
    """Drafts whose trees have other fields."""
    return drafts(tree=lambda draft: replace(draft.tree, **_values(draft, fields)))


def _values(event: Any, fields: dict[str, Any]) -> dict[str, Any]:
    return {n: value(event) if callable(value) else value for n, value in fields.items()}


# --- A worker that is none ---------------------------------------------------------

Answers = Callable[[bytes], Awaitable[bytes]]


def description(step_times: Sequence[StepTime] = (), **changes: Any) -> bytes:
    """The answer to Describe, of a verifier with the table's tokenizer."""
    bundle = table_engine().bundle
    assert bundle is not None
    worker = t.WorkerDescription("raw", t.Role.VERIFIER, "table", vocab_size=12)
    worker = replace(worker, tokenizer_fingerprint=bundle.fingerprint, max_context_length=64)
    described = wire.encode_description(replace(worker, **changes))
    return verifier_pb2.VerifierServiceDescribeResponse(
        worker=described, step_times=wire.encode_step_times(step_times)
    ).SerializeToString()


def part(data: bytes) -> bytes:
    """One answer of GetTokenizer."""
    return verifier_pb2.GetTokenizerResponse(part=data).SerializeToString()


def good_parts() -> list[bytes]:
    """The table's tokenizer."""
    bundle = table_engine().bundle
    assert bundle is not None
    return [part(data) for data in wire.split_bundle(bundle)]


@asynccontextmanager
async def raw_verifier(
    described: Callable[[], bytes],
    tokenizer: Callable[[], Iterable[bytes]],
    link: Callable[[], Sequence[bytes]] = lambda: (),
):
    """A port that answers with these bytes, whatever they are; links stay open after theirs."""

    async def describe(_request: bytes, _context: Any) -> bytes:
        return described()

    async def fetch(_request: bytes, _context: Any) -> Any:
        for data in tokenizer():
            yield data

    async def serve(_requests: Any, _context: Any) -> Any:
        for data in link():
            yield data
        await asyncio.sleep(3600)

    methods = {
        "Describe": grpc.unary_unary_rpc_method_handler(describe),
        "GetTokenizer": grpc.unary_stream_rpc_method_handler(fetch),
        "Link": grpc.stream_stream_rpc_method_handler(serve),
    }
    server = grpc.aio.server()
    service = "paceline.v1.VerifierService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
