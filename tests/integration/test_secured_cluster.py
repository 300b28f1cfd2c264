"""A whole cluster behind certificates and a token says what a plain one says."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from paceline import Client
from paceline.worker.v1 import verifier_pb2, verifier_pb2_grpc

from services.runtime.serving import ClusterToken, Dialing, ServingOptions, TlsFiles, open_channel
from tests.certificates import Authority
from tests.integration.cluster import PATIENT, PROMPT, cluster, plain, start_drafter, start_verifier
from tests.waiting import until

SECRET = "only-the-processes-of-this-cluster-know"
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(SECRET)
    return file


def client_of(authority: Authority) -> Callable[[str], Client]:
    files = authority.issue("client", "somebody")
    ca, cert, key = (path.read_bytes() for path in (files.ca, files.cert, files.key))
    return lambda address: Client(address, ca=ca, cert=cert, key=key)


async def link_of(address: str, tls: TlsFiles, metadata: tuple = ()) -> grpc.StatusCode:
    """What who opens a link gets."""
    async with open_channel(address, tls, "paceline-worker") as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Describe(
            verifier_pb2.VerifierServiceDescribeRequest(), metadata=metadata, timeout=60
        )
        return await call.code()


async def test_a_cluster_on_mutual_tls_with_a_token_generates_what_a_plain_one_does(
    authority, token, caplog
):
    caplog.set_level(logging.DEBUG)
    worker = ServingOptions(
        tls=authority.issue("worker", "paceline-worker"), cluster_token_file=token, grace=2.0
    )
    front = ServingOptions(tls=authority.issue("front"), health_address="127.0.0.1:0")
    dialing = Dialing(
        tls=replace(authority.issue("orchestrator", "o1"), settings="link"),
        server_name="paceline-worker",
        token=ClusterToken(token),
    )
    verifier = await start_verifier(serving=worker)
    drafter = await start_drafter(serving=worker)
    async with cluster(
        [verifier],
        [drafter],
        PATIENT,
        dialing=dialing,
        serving=front,
        make_client=client_of(authority),
    ) as running:
        run = await running.client.generate(PROMPT, **GREEDY)
        assert list(run.token_ids) == plain(PROMPT, 24)
        assert run.speculation.num_draft_tokens > 0
        with_token = (("authorization", f"Bearer {SECRET}"),)
        stranger = TlsFiles(ca=authority.path)
        assert await link_of(verifier.address, stranger, with_token) is grpc.StatusCode.UNAVAILABLE
        known = authority.issue("other", "client")
        assert await link_of(verifier.address, known) is grpc.StatusCode.UNAUTHENTICATED
        assert await link_of(verifier.address, known, with_token) is grpc.StatusCode.OK
    assert SECRET not in caplog.text


async def test_links_that_break_come_back_with_the_certificates_of_that_moment(authority, tmp_path):
    """Both sides go over to another CA while they serve; then the link is cut."""
    mine = authority.issue("worker", "paceline-worker")
    link = replace(authority.issue("orchestrator", "o1"), settings="link")
    worker = ServingOptions(tls=mine, grace=2.0)
    dialing = Dialing(tls=link, server_name="paceline-worker")
    async with cluster(
        [await start_verifier(serving=worker)], [], PATIENT, dialing=dialing
    ) as running:
        other = Authority(tmp_path / "other")
        for old, new in (
            (mine, other.issue("worker", "paceline-worker")),
            (link, other.issue("orchestrator", "o1")),
        ):
            for path, fresh in zip(old.paths, new.paths, strict=True):
                path.write_bytes(fresh.read_bytes())
        [held] = running.pool.links()
        held.cut("the test says so")
        assert not held.up
        await until(lambda: held.up)
        run = await running.client.generate(PROMPT, **GREEDY)
        assert list(run.token_ids) == plain(PROMPT, 24)
        assert await link_of(running.verifiers[0].address, other.issue("c")) is grpc.StatusCode.OK
