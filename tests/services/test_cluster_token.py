"""Who may open links: the cluster token, and where it may travel."""

import asyncio
import logging

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.worker.v1 import verifier_pb2

from orchestrator.workers.pool import WorkerPool
from services.contract.errors import StartError
from services.contract.types import Role
from services.runtime.serving import ClusterToken, Dialing, TlsFiles
from tests.services.link_kit import worker
from tests.waiting import until

SECRET = "correct-horse-battery-staple"
REFUSED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_text(SECRET + "\n")
    return path


@pytest.fixture
async def served(file):
    async with worker(cluster_token_file=file) as served:
        yield served


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


async def described(served, metadata=()):
    request = verifier_pb2.VerifierServiceDescribeRequest()
    try:
        await served.stub.Describe(request, metadata=metadata, timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_only_the_right_token_opens_anything_and_no_secret_is_logged(file, caplog):
    caplog.set_level(logging.DEBUG)
    wrong = [
        (),
        bearer("a-wrong-guess-0123456789"),
        bearer(SECRET + "x"),
        bearer(SECRET[:-1]),
        bearer(""),
        (("authorization", SECRET),),
        (("authorization", f"Basic {SECRET}"),),
        bearer(SECRET) * 2,
        bearer(SECRET) + bearer("wrong"),
    ]
    async with worker(cluster_token_file=file) as served:
        assert [await described(served, metadata) for metadata in wrong] == [REFUSED] * len(wrong)
        assert await described(served, bearer(SECRET)) is grpc.StatusCode.OK
        assert served.host.progress().sessions == 0
    assert SECRET not in caplog.text
    assert "a-wrong-guess" not in caplog.text


async def test_a_stranger_on_a_link_is_refused_before_a_message_and_gets_no_tokenizer(served):
    silent = served.stub.Link()
    async with asyncio.timeout(60):
        assert await silent.code() is REFUSED
    parts = served.stub.GetTokenizer(verifier_pb2.VerifierServiceGetTokenizerRequest())
    async with asyncio.timeout(60):
        assert await parts.code() is REFUSED


async def test_health_needs_no_token(served):
    stub = health_pb2_grpc.HealthStub(served.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_token_is_replaced_while_everything_runs(served, file):
    assert await described(served, bearer(SECRET)) is grpc.StatusCode.OK
    file.write_text(f"the-new-one\n{SECRET}\n")
    for token in (SECRET, "the-new-one"):
        assert await described(served, bearer(token)) is grpc.StatusCode.OK
    file.write_text("the-new-one\n")
    assert await described(served, bearer(SECRET)) is REFUSED
    file.write_text("")
    assert await described(served, bearer("the-new-one")) is grpc.StatusCode.OK
    assert await described(served, bearer("")) is REFUSED


async def test_an_orchestrator_shows_the_token_and_connects_once_it_is_right(file, tmp_path):
    own = tmp_path / "own"
    own.write_text("not-yet-the-right-one")
    async with worker(Role.DRAFTER, cluster_token_file=file) as served:
        pool = WorkerPool("o1", dialing=Dialing(token=ClusterToken(own)))
        pool.set_addresses(Role.DRAFTER, [served.address.result()])
        [link] = pool.links()
        try:
            await until(lambda: "unauthenticated" in link.problem)
            assert not link.up
            own.write_text(SECRET)
            await until(lambda: link.up)
        finally:
            await pool.close()


def test_a_token_never_travels_in_the_clear_beyond_loopback(file):
    token = ClusterToken(file)
    for dialing in (Dialing(token=token), Dialing()):
        with pytest.raises(StartError, match="link_ca"):
            dialing.metadata("10.0.0.1:5")
        with pytest.raises(StartError, match="link_ca"):
            dialing.channel("10.0.0.1:5")
    shown = bearer(SECRET)
    assert Dialing(token=token).metadata("127.0.0.1:5") == shown
    assert Dialing(token=token, insecure=True).metadata("10.0.0.1:5") == shown
    assert Dialing(token=token, tls=TlsFiles()).metadata("10.0.0.1:5") == shown
    assert SECRET not in repr(Dialing(token=token)) + repr(vars(token))


@pytest.mark.parametrize("content", ["", "\n \n", "two words", "ünicode", "a\0b"])
def test_a_file_without_a_usable_token_is_refused_and_not_quoted(file, content):
    file.write_text(content)
    with pytest.raises(StartError, match=rf"cluster_token_file: {file}") as caught:
        ClusterToken(file)
    assert not content.strip() or content not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StartError, match=r"cluster_token_file: cannot read .*none"):
        ClusterToken(tmp_path / "none")
