"""Response formats without end, sent to a real orchestrator: it serves on, and ends when told."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import psutil
import pytest
from paceline.v1 import inference_pb2 as pb

from services.runtime.embedded_redis import EmbeddedRedis
from testkit.child import child
from tests.integration.known import Ended, read, stub
from tests.models import tiny_model_folder
from tests.processes.conftest import COMMAND
from tests.waiting import until

pytestmark = pytest.mark.processes

SCHEMAS = [
    json.dumps({"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(24 + more)]})
    for more in range(3)
]
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def behind(models, tmp_path_factory) -> Iterator[list[str]]:
    """The flags that lead an orchestrator to its store and its verifier."""
    with EmbeddedRedis() as redis:
        ready = tmp_path_factory.mktemp("verifier") / "ready"
        flags = ["--target", str(models / "llama-0"), "--redis", redis.url, "--threads", "1"]
        with child([*COMMAND, "verifier", *flags, "--ready-file", str(ready)], ready):
            address = ready.read_text().strip()
            yield ["--redis", redis.url, "--verifier-addresses", address]


@pytest.fixture
def running(behind, tmp_path) -> Iterator[tuple[psutil.Process, str]]:
    """An orchestrator, and its address. A format may take 30 s of CPU."""
    own = tmp_path / "orchestrator"
    flags = ["--port", "0", "--form-seconds", "30", *behind]
    flags += ["--worker-silence", "60", "--engine-stall", "60", "--ready-file", str(own)]
    with child([*COMMAND, "orchestrator", *flags], own) as made:
        yield psutil.Process(made.pid), own.read_text().strip()


AMBIGUOUS = 'start: a\na: a a | "x"'
"""Takes time with the cube of its text."""


@pytest.fixture(scope="module")
def beside_each_other(tmp_path_factory) -> Iterator[tuple[list[psutil.Process], str]]:
    """Two verifiers, and an orchestrator's address; its sessions may go to either."""
    folder = tmp_path_factory.mktemp("two")
    target = tiny_model_folder(folder / "target", max_position_embeddings=1024)
    with EmbeddedRedis() as redis, ExitStack() as stack:

        def start(name: str, *flags: str) -> tuple[psutil.Process, str]:
            ready = folder / name
            command = [*COMMAND, *flags, "--redis", redis.url, "--ready-file", str(ready)]
            made = stack.enter_context(child(command, ready))
            return psutil.Process(made.pid), ready.read_text().strip()

        verifier = ("verifier", "--target", str(target), "--threads", "1")
        verifiers = [start(name, *verifier) for name in ("v1", "v2")]
        addresses = ",".join(address for _, address in verifiers)
        front = start("o", "orchestrator", "--port", "0", "--verifier-addresses", addresses)
        yield [process for process, _ in verifiers], front[1]


@pytest.mark.slow
async def test_a_grammar_that_takes_too_much_ends_its_session_and_no_verifier(beside_each_other):
    """Its text is long when it comes back; to follow it takes its worker's thread very long."""
    verifiers, address = beside_each_other
    hard = pb.SamplingParams(grammar=AMBIGUOUS, temperature=0.0, max_tokens=900, min_tokens=900)
    async with stub(address) as front:
        call = front.Generate(pb.GenerateRequest(prompt="ab", request_id="hard", sampling=hard))
        seen = 0
        while seen < 200:
            event = await call.read()
            seen += len(event.chunk.token_ids)
        call.cancel()
        for _ in range(2):
            ended = await read(front.Resume(pb.ResumeRequest(session_id="hard")))
            assert ended.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (ended.reason, ended.retry_after) == ("FORMAT_TOO_COSTLY", None)
            assert "sampling.response_format" in ended.message
            assert 200 <= len(ended.tokens) < 900
        again = await read(front.Generate(pb.GenerateRequest(prompt="cd", sampling=hard)))
        assert (again.code, again.reason) == (ended.code, ended.reason)
        assert not again.tokens
        assert all([(await read(front.Generate(asked()))).complete for _ in range(4)])
    assert all(one.is_running() for one in verifiers)


def asked(**sampling: object) -> pb.GenerateRequest:
    params = pb.SamplingParams(temperature=0.0, max_tokens=4, **sampling)
    return pb.GenerateRequest(prompt="ab", sampling=params)


async def besieged(
    address: str, orchestrator: psutil.Process, strike
) -> tuple[list[Ended], list[Ended], set[psutil.Process]]:
    """Bad requests, good ones meanwhile, and the children; `strike` comes before the bad ends."""
    async with stub(address) as front:
        good = [await read(front.Generate(asked(**form))) for form in ({}, {"regex": "[a-z]{2}"})]
        before = orchestrator.memory_info().rss
        bad = [asyncio.ensure_future(read(front.Generate(asked(json_schema=s)))) for s in SCHEMAS]
        await until(lambda: len(children(orchestrator)) > 1, problem="nothing is compiled")
        good += [await read(front.Generate(asked())) for _ in range(3)]
        assert orchestrator.memory_info().rss < before + 64 * MEBIBYTE
        assert not any(one.done() for one in bad)
        own = children(orchestrator)
        strike()
        return await asyncio.gather(*bad), good, own


def children(orchestrator: psutil.Process) -> set[psutil.Process]:
    return {
        one for one in orchestrator.children() if "services.grammar.vetting_child" in one.cmdline()
    }


def test_sigterm_ends_an_orchestrator_while_formats_without_end_are_compiled(running):
    orchestrator, address = running
    bad, good, own = asyncio.run(besieged(address, orchestrator, orchestrator.terminate))
    assert all(one.complete for one in good)
    # For another orchestrator to take.
    assert {(one.code, one.reason) for one in bad} == {(grpc.StatusCode.UNAVAILABLE, "DRAINING")}
    gone, alive = psutil.wait_procs([orchestrator, *own], timeout=60)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE], gone


def test_the_children_die_with_an_orchestrator_that_is_killed(running):
    orchestrator, address = running
    _, _, own = asyncio.run(besieged(address, orchestrator, orchestrator.kill))
    assert own
    psutil.wait_procs(own, timeout=60)
    assert not [one for one in own if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
