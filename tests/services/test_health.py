"""What a process says of itself, from its start to its end."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from orchestrator.store import store_health as watching
from orchestrator.store.store_health import watch
from services.contract import types as t
from services.contract.errors import StartError
from services.runtime.host import WorkerHost
from services.runtime.serving import (
    GrpcServer,
    Health,
    Served,
    ServingOptions,
    loaded,
    open_channel,
    serve_worker,
)
from services.runtime.tasks import end
from tests.services.fakes import FakeCore
from tests.waiting import until

OPTIONS = ServingOptions(health_address="127.0.0.1:0")
SERVICE = "paceline.worker.v1.VerifierService"


async def serving(address, *names):
    """Which names are SERVING; None = a name that is not known."""
    async with open_channel(address) as channel:
        stub, answers = health_pb2_grpc.HealthStub(channel), []
        for name in names:
            call = stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=60)
            status = (await call.read()).status
            known = status != health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            answers.append(status == health_pb2.HealthCheckResponse.SERVING if known else None)
            call.cancel()
        return answers


NAMES = ("liveness", "startup", "readiness", "", SERVICE)


async def test_a_process_lives_from_its_start_and_is_ready_once_it_serves():
    async with Health(OPTIONS) as health:
        assert await serving(health.address, *NAMES) == [True, False, False, False, None]
        await health.started()
        assert await serving(health.address, *NAMES) == [True, True, False, False, None]
        server = GrpcServer(ServingOptions(), health=health)
        address = await server.start(SERVICE)
        for port in (address, health.address):
            assert await serving(port, *NAMES) == [True] * 5
        await server.set_ready(False)
        await server.stop()
        # Nothing serves any more, and that is told to the end.
        assert await serving(health.address, *NAMES) == [True, True, False, False, False]


async def test_what_is_in_the_way_and_what_is_accepted_both_count_for_readiness():
    async with Health(OPTIONS) as health:
        said = []
        obstruct, accept = health.obstruct, health.accept
        for change, true in ((obstruct, True), (accept, True), (obstruct, False), (accept, False)):
            await change(true)
            said += await serving(health.address, "readiness")
        assert said == [False, False, True, False]
        assert await serving(health.address, "liveness") == [True]


async def test_a_worker_that_cannot_be_announced_was_never_ready():
    host = WorkerHost(FakeCore)
    role = Served(host, t.WorkerDescription("w1", t.Role.VERIFIER))
    async with Health(OPTIONS) as health:
        said = []

        async def announce(_):
            said.extend(await serving(health.address, *NAMES))
            raise StartError("Redis is away")

        with pytest.raises(StartError, match="Redis is away"):
            await serve_worker(
                ServingOptions(), role, on_ready=announce, stop=asyncio.Event(), health=health
            )
        assert said == [True, True, False, False, False]


async def test_what_is_loaded_beside_the_loop_is_returned_or_raised_and_the_loop_goes_on():
    loop = asyncio.get_running_loop()

    def load():
        # Comes back only if the loop runs meanwhile.
        return asyncio.run_coroutine_threadsafe(asyncio.sleep(0, 7), loop).result(60)

    def fail():
        raise StartError("no model")

    assert await loaded(load, asyncio.Event()) == 7
    with pytest.raises(StartError, match="no model"):
        await loaded(fail, asyncio.Event())


class Store:
    """Answers as told, and counts how often it was asked."""

    def __init__(self):
        self.there, self.asked = True, 0

    async def answers(self):
        self.asked += 1
        return self.there


async def test_a_store_that_is_away_for_a_moment_makes_no_orchestrator_unready(monkeypatch, caplog):
    monkeypatch.setattr(watching, "ASK_EVERY", 0.01)
    caplog.set_level("INFO")
    async with Health(OPTIONS) as health:
        await health.accept(True)
        store = Store()
        task = asyncio.create_task(watch(store, health, silence=600))
        for store.there in (False, True):
            store.asked = 0
            await until(lambda: store.asked >= 5)
            assert await serving(health.address, "readiness") == [True]
        await end(task)
    assert not [line for line in caplog.messages if line.startswith("Redis")]


async def test_a_store_that_is_away_for_long_makes_an_orchestrator_unready(monkeypatch, caplog):
    monkeypatch.setattr(watching, "ASK_EVERY", 0.01)
    caplog.set_level("INFO")
    async with Health(OPTIONS) as health:
        await health.accept(True)
        store = Store()

        async def says(ready):
            return await serving(health.address, "readiness") == [ready]

        task = asyncio.create_task(watch(store, health, silence=0.3))
        for _ in range(2):
            store.there = False
            await until(lambda: says(False))
            store.there = True
            await until(lambda: says(True))
        await end(task)
    told = [line for line in caplog.messages if line.startswith("Redis")]
    away = "Redis takes no writes for 0.3 s: not ready until it does"
    assert told == [away, "Redis takes writes again: ready"] * 2
