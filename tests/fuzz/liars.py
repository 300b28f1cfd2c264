"""Workers that lie: a real core whose events are replaced on their way out, and a raw one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
from paceline.worker.v1 import verifier_pb2

from services.contract import types as t
from services.contract import wire
from services.contract.frames import (
    DraftFrame,
    DraftRow,
    StepFrame,
    StepRow,
    draft_frame,
    draft_rows,
    step_frame,
    step_rows,
)
from services.contract.worker_messages import StartVerify
from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.verifier.running.core import RunningCore
from tests.fuzz.engine import table_engine
from tests.integration.cluster import Worker, start_worker

Lie = Callable[[Any], Iterable[Any]]
"""What leaves instead of an event."""


class Unbounded(RunningCore):
    """Runs its sessions without a look at their credit."""

    def handle(self, link: int, command: Any, arrived: float | None = None) -> None:
        """Every limit is far away."""
        if isinstance(command, StartVerify):
            command = replace(command, limit=1 << 30)
        super().handle(link, command, arrived)


async def lying_verifier(
    name: str, lie: Lie, core: Callable[..., RunningCore] = RunningCore
) -> Worker:
    """A verifier whose events go through `lie`."""
    engine = table_engine()
    return await start_worker(
        lambda emit: core(engine, emit=_through(lie, emit), worker_id=name, absorb=emit.absorb),
        engine.bundle,
    )


async def lying_drafter(name: str, lie: Lie) -> Worker:
    """A drafter of chains and trees whose events go through `lie`."""
    methods: dict[str, Any] = {"model": ModelDrafter(table_engine(1)), "ngram": NgramDrafter()}
    return await start_worker(
        lambda emit: HypothesisCore(methods, emit=_through(lie, emit), worker_id=name)
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


def steps(**fields: Any) -> Lie:
    """Steps whose rows have other fields; a function is given the row."""
    return of_kind(StepFrame, lambda frame: rows_changed(frame, _other(fields)))


def rows_changed(frame: StepFrame, change: Callable[[StepRow], StepRow]) -> StepFrame:
    """A frame with other rows."""
    return step_frame(frame, [change(row) for row in step_rows(frame)], [*frame.windows])


def frames(**fields: Any) -> Lie:
    """Frames of steps with other columns; a function is given the frame."""
    return of_kind(StepFrame, lambda frame: replace(frame, **_values(frame, fields)))


def drafts(**fields: Any) -> Lie:
    """Drafts whose rows have other fields."""
    change = _other(fields)
    return of_kind(DraftFrame, lambda frame: draft_frame([change(r) for r in draft_rows(frame)]))


def draft_columns(**fields: Any) -> Lie:
    """Frames of drafts with other columns."""
    return of_kind(DraftFrame, lambda frame: replace(frame, **_values(frame, fields)))


def trees(**fields: Any) -> Lie:
    """Drafts whose trees have other fields."""

    def other(draft: DraftRow) -> t.DraftTree:
        return replace(draft.tree, **_values(draft, fields))

    return drafts(tree=other)


def _other(fields: dict[str, Any]) -> Callable[[Any], Any]:
    return lambda row: row._replace(**_values(row, fields))


def _values(event: Any, fields: dict[str, Any]) -> dict[str, Any]:
    return {n: value(event) if callable(value) else value for n, value in fields.items()}


# --- A worker that is none ---------------------------------------------------------

Answers = Callable[[bytes], Awaitable[bytes]]


def description(**changes: Any) -> bytes:
    """The answer to Describe, of a verifier with the table's tokenizer."""
    bundle = table_engine().bundle
    assert bundle is not None
    worker = t.WorkerDescription("raw", t.Role.VERIFIER, "table", vocab_size=12)
    worker = replace(worker, tokenizer_fingerprint=bundle.fingerprint, max_context_length=64)
    described = wire.encode_description(replace(worker, **changes))
    return verifier_pb2.VerifierServiceDescribeResponse(worker=described).SerializeToString()


def part(data: bytes) -> bytes:
    """One answer of GetTokenizer."""
    return verifier_pb2.VerifierServiceGetTokenizerResponse(part=data).SerializeToString()


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
    service = "paceline.worker.v1.VerifierService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
