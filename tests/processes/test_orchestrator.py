"""Orchestrators as real processes with one store: who may call, and how they are told to stop."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from paceline.v1 import inference_pb2 as pb

from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.serving.bearer import token_entry
from testkit.child import child
from tests.integration.known import Ended, bearer, read, request, stub, text
from tests.processes.conftest import COMMAND
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

STEP_MS = 10
# Of which streams get three fifths; a long text takes more.
GRACE = 5
TOKENS = 600


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], str]]]:
    """Starts orchestrators that share workers and a store; each with its address."""
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis())
        file = tmp_path / "workers"
        workers = [sys.executable, "-m", "testkit.load_workers", str(file), str(STEP_MS)]
        stack.enter_context(child([*workers, "0", "1", "4"], file))
        address = file.read_text().split()[0]

        def orchestrator(
            name: str, *more: str, grace: int = GRACE
        ) -> tuple[subprocess.Popen[bytes], str]:
            ready = tmp_path / name
            flags = ["--port", "0", "--redis", redis.url, "--verifier-addresses", address]
            flags += ["--ready-file", str(ready)]
            flags += ["--orchestrator-id", name, "--grace", str(grace)]
            flags += ["--worker-silence", "60", "--engine-stall", "60", "--log-level", "debug"]
            running = stack.enter_context(child([*COMMAND, "orchestrator", *flags, *more], ready))
            return running, ready.read_text().strip()

        yield orchestrator


async def cut_off(address: str, end: Callable[[], None]) -> tuple[list[int], Ended]:
    """What a stream says before `end`, and what comes after."""
    async with stub(address) as front:
        call, said = front.Generate(request(7, TOKENS, "cut")), []
        while len(said) < 20:
            said += (await call.read()).chunk.token_ids
        end()
        return said, await read(call)


async def go_on(address: str, said: list[int]) -> Ended:
    """The rest, from another orchestrator."""
    async with stub(address) as front:
        return await read(front.Resume(pb.ResumeRequest(session_id="cut", offset=len(said))))


def test_sigterm_in_the_middle_of_a_stream_hands_it_over_and_ends_with_status_0(start):
    (leaving, address), (_, other) = start("one"), start("two")
    said, end = asyncio.run(cut_off(address, leaving.terminate))
    assert (end.code, end.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    # It went on for a while.
    assert len(end.tokens) > 0
    assert leaving.wait(timeout=60) == 0
    said += end.tokens
    rest = asyncio.run(go_on(other, said))
    assert rest.complete.finish_reason == pb.FINISH_REASON_LENGTH
    assert said + rest.tokens == text(7, TOKENS)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process handles this signal itself."""
    [mask] = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_and_the_session_can_be_resumed(start, second):
    (leaving, address), (_, other) = start("one", grace=60), start("two")
    assert catches(leaving.pid, signal.SIGTERM)

    def twice() -> None:
        leaving.send_signal(signal.SIGTERM)
        # A signal that finds one of its kind waiting would be lost.
        both = (signal.SIGTERM, signal.SIGINT)
        wait_until(lambda: not any(catches(leaving.pid, each) for each in both))
        leaving.send_signal(second)

    said, end = asyncio.run(cut_off(address, twice))
    assert end.code is grpc.StatusCode.UNAVAILABLE
    assert leaving.wait(timeout=60) == -second
    said += end.tokens
    assert said + asyncio.run(go_on(other, said)).tokens == text(7, TOKENS)


def test_with_a_tokens_file_the_process_asks_who_calls(start, tmp_path, capfd):
    entry = {"tokens": [token_entry("the-token-of-acme")], "max_tokens": 30}
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"tenants": {"acme": entry}}))
    _, address = start("one", "--tokens-file", str(file))

    async def ask() -> list[Ended]:
        async with stub(address) as front:
            asked, more = request(7, 30), request(7, 31)
            keys = ((asked, ()), (asked, "wrong-token"), (asked, "the-token-of-acme"))
            return [
                await read(front.Generate(message, metadata=bearer(key) if key else ()))
                for message, key in (*keys, (more, "the-token-of-acme"))
            ]

    nobody, wrong, known, greedy = asyncio.run(ask())
    assert nobody.code is wrong.code is grpc.StatusCode.UNAUTHENTICATED
    assert known.tokens == text(7, 30)
    assert greedy.code is grpc.StatusCode.INVALID_ARGUMENT
    # The process writes its log to the same stderr, down to debug.
    logged = capfd.readouterr().err
    assert "serves on" in logged
    assert "token-of-acme" not in logged
    assert "wrong-token" not in logged
