"""Calls that go on with a session are spans of their callers, and lead to the session's."""

from paceline.v1 import inference_pb2 as pb

from orchestrator.steering.config import Limits
from services.runtime.telemetry import names
from tests.integration.cluster import PATIENT, cluster, orchestrator
from tests.integration.known import known_verifier, read, request, stub, text

TOKENS = 300
HERE = Limits(detach_grace=60.0)


def trace(number: int) -> tuple[tuple[str, str], ...]:
    """The trace context of a caller."""
    return (("traceparent", f"00-{number:032x}-{number:016x}-01"),)


async def some_of(call, tokens: int = 5) -> list[int]:
    """The first tokens of a stream, which stays open."""
    got: list[int] = []
    while len(got) < tokens:
        got += (await call.read()).chunk.token_ids
    return got


def resume(front, offset: int, caller: int):
    return front.Resume(pb.ResumeRequest(session_id="s", offset=offset), metadata=trace(caller))


async def test_a_second_reader_is_a_span_of_its_own_that_leads_to_the_session(receiver):
    workers = [await known_verifier(2.0)], []
    async with cluster(*workers, PATIENT, limits=HERE) as running, stub(running.address) as front:
        first = front.Generate(request(1, TOKENS, "s"), metadata=trace(0xA))
        await some_of(first)
        second = await read(resume(front, 0, 0xB))
        await read(first)
    assert second.tokens == text(1, TOKENS)

    [generate] = receiver.named(names.GENERATE.name)
    [again] = receiver.named(names.RESUME.name)
    assert generate.trace_id == f"{0xA:032x}"
    assert (again.trace_id, again.parent_id) == (f"{0xB:032x}", f"{0xB:016x}")
    assert again.links == (generate.place,)
    assert (again.kind, again.attributes[names.OFFSET], again.error) == ("server", 0, "")
    assert again.attributes[names.SESSION_ID] == generate.attributes[names.SESSION_ID]
    assert generate.start < again.start <= again.end


async def test_another_owner_goes_on_within_the_trace_of_the_call_that_asked_it(receiver):
    workers = [await known_verifier(2.0)], []
    async with (
        cluster(*workers, PATIENT, limits=HERE) as one,
        orchestrator("o2", one.redis, *workers, PATIENT, limits=HERE) as other,
        stub(one.address) as front,
        stub(other.address) as elsewhere,
    ):
        first = front.Generate(request(2, TOKENS, "s"), metadata=trace(0xA))
        seen = await some_of(first)
        rest = await read(resume(elsewhere, len(seen), 0xB))
        fenced = await read(first)
    assert seen + rest.tokens == text(2, TOKENS)
    assert fenced.reason == "FENCED"

    [again] = receiver.named(names.RESUME.name)
    before, after = sorted(receiver.named(names.GENERATE.name), key=lambda span: span.start)
    assert (again.trace_id, again.parent_id) == (f"{0xB:032x}", f"{0xB:016x}")
    assert (after.trace_id, after.parent_id) == again.place
    assert [span.attributes[names.TERM] for span in (before, after)] == [1, 2]
    assert before.attributes[names.ERROR_TYPE] == "Fenced"
    assert after.attributes[names.FINISH_REASONS] == ["length"]
    assert after.attributes[names.SESSION_ID] == before.attributes[names.SESSION_ID]


async def test_a_resume_that_is_refused_says_why(receiver):
    workers = [await known_verifier()], []
    async with cluster(*workers, PATIENT) as running, stub(running.address) as front:
        await read(resume(front, 0, 0xB))
        await read(front.Generate(request(3, 5, "s")))
        await read(resume(front, 99, 0xC))
    missing, beyond = sorted(receiver.named(names.RESUME.name), key=lambda span: span.start)
    assert missing.error == missing.attributes[names.ERROR_TYPE] == "NotFound"
    assert beyond.error == "OffsetOutOfRange"
