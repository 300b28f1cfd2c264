"""What real processes tell probes: from their start, while a model loads, without Redis."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.ports import free_port
from services.runtime.registry import Registration
from tests.integration.known import known_verifier, request, stub
from tests.processes.probed import LOADING, READY, WAITING, Probed, Says, probed
from tests.processes.test_synthetic import TIMES

pytestmark = pytest.mark.processes


def pipe_in(folder: Path) -> Path:
    """A file whose reader waits until somebody has written it."""
    pipe = folder / "times.json"
    os.mkfifo(pipe)
    return pipe


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_a_worker_answers_probes_while_its_model_loads(role: str, tmp_path: Path) -> None:
    times = pipe_in(tmp_path)
    cpu = min(os.sched_getaffinity(0))
    with probed(tmp_path, role, "--synthetic", times, "--cpus", cpu) as worker:
        assert worker.says() == LOADING
        times.write_text(json.dumps(TIMES))
        assert set(worker.until(READY)) <= {LOADING, WAITING, READY}
        # The thread that computes is started from the main one, which is kept to these cores.
        assert os.sched_getaffinity(worker.process.pid) == {cpu}
        service = f"paceline.worker.v1.{role.capitalize()}Service"
        assert all(worker.serves(name) for name in ("", service))
        assert worker.ends() == 0


def test_a_worker_that_is_told_to_stop_while_its_model_loads_ends_at_once(tmp_path: Path) -> None:
    with probed(tmp_path, "drafter", "--synthetic", pipe_in(tmp_path)) as worker:
        assert (worker.says(), worker.ends()) == (LOADING, 0)
        assert [line["message"].split(":")[0] for line in worker.log()[1:]] == ["SIGTERM"]


def test_a_verifier_that_drafts_too_lives_while_a_real_model_loads(models: Path, tmp_path: Path):
    flags = ("--target", models / "llama-0", "--drafting", "ngram", "--threads", 1)
    with probed(tmp_path, "verifier", *flags) as worker:
        said = worker.until(READY)
        assert said[0] == LOADING
        assert all(each.liveness for each in said)
        assert worker.serves("paceline.worker.v1.VerifierService")
        assert worker.ends() == 0


async def test_an_orchestrator_is_ready_with_a_verifier_and_redis_whatever_the_collector_does(
    tmp_path: Path,
) -> None:
    collector = f"127.0.0.1:{free_port()}"
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector}",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    with EmbeddedRedis() as redis:
        flags = ["--redis", redis.url, "--store-silence", 1, "--ready-file", tmp_path / "ready"]
        flags += ["--worker-silence", 60, "--engine-stall", 60]
        with probed(tmp_path, "orchestrator", *flags, environment=environment) as process:
            await until(process, WAITING)
            worker = await known_verifier(step_ms=10)
            async with Registration(redis.url, worker.host.describe(), worker.address):
                await until(process, READY)
                assert process.serves("paceline.v1.InferenceService")
                await without_redis(process, redis)
                await while_it_drains(process)
            assert await asyncio.to_thread(process.process.wait, 60) == 0
            worker.stop.set()
            await worker.task
            serious = [line for line in process.log() if line["level"] in ("warning", "error")]
    [told] = [line for line in serious if line["logger"].startswith("opentelemetry")]
    assert collector in told["message"]
    silences = [line["message"] for line in serious if "Redis" in line["message"]]
    assert silences == ["Redis takes no writes for 1 s: not ready until it does"]


async def until(process: Probed, wanted: Says) -> list[Says]:
    """As `Probed.until`, while this loop serves."""
    return await asyncio.to_thread(process.until, wanted)


async def without_redis(process: Probed, redis: EmbeddedRedis) -> None:
    """Redis keeps its connections open and answers nothing, for a while."""
    assert redis.pid is not None
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        assert (await until(process, WAITING))[0] == READY, "a moment is no absence"
    finally:
        os.kill(redis.pid, signal.SIGCONT)
    await until(process, READY)


async def while_it_drains(process: Probed) -> None:
    """A stream goes on after SIGTERM, and the process says that it takes no other."""
    async with stub(process.served_at) as front:
        call = front.Generate(request(7, 2000))
        while not (await call.read()).HasField("chunk"):
            pass
        process.process.terminate()
        await until(process, WAITING)
        assert not call.done()
        call.cancel()
