"""The published client: where it connects, over what, and what it shows there."""

import asyncio

import grpc
import paceline
import pytest
from paceline import Client
from paceline._addresses import is_loopback, parse_addresses
from paceline._channel import channel_options

from services.runtime.serving.options import ServingOptions, server_options
from tests.certificates import Authority
from tests.services.breaking_inference import BreakingService, Cluster, serving

NAME = "paceline.test"


@pytest.fixture
async def service():
    return BreakingService(Cluster())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Of a server whose name is not its address: key, certificate, and who issued it."""
    files = Authority(tmp_path_factory.mktemp("certificate")).issue("server", NAME)
    return [path.read_bytes() for path in (files.key, files.cert, files.ca)]


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("a:1", ("a:1",)),
        ("a:1, b:2,a:1", ("a:1", "b:2")),
        (["a:1", "b:2,c:3"], ("a:1", "b:2", "c:3")),
        ("dns:///a:1", ("dns:///a:1",)),
    ],
)
def test_addresses_are_one_or_several(given, addresses):
    assert parse_addresses(given) == addresses


@pytest.mark.parametrize("given", ["", " ", "a:1,", [], ["a:1", ""]])
def test_an_address_that_is_none_is_refused(given):
    with pytest.raises(ValueError, match="HOST:PORT"):
        Client(given)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("dns:///localhost:1", True),
        ("ipv4:127.0.0.7:1", True),
        ("ipv6:[::1]:1", True),
        ("unix:/run/x", True),
        ("dns:///example.org:1", False),
        ("dns://127.0.0.1/example.org:1", False),
        ("localhost.example.org:1", False),
        ("10.0.0.1:1", False),
        ("[fe80::1]:1", False),
    ],
)
def test_what_plaintext_may_go_to(address, local):
    assert is_loopback(address) is local


@pytest.mark.parametrize("token", [None, "secret"])
@pytest.mark.parametrize("address", ["10.0.0.1:1", "127.0.0.1:1,10.0.0.1:1"])
def test_one_address_beyond_loopback_is_enough_to_refuse_plaintext(address, token):
    with pytest.raises(ValueError, match=r"10\.0\.0\.1.*insecure=True"):
        Client(address, token=token)
    Client(address, token=token, insecure=True)
    Client(address, token=token, ca=b"pem")


@pytest.mark.parametrize("token", ["", "two words", "line\n", "schlüssel"])
def test_a_token_that_no_header_can_hold_is_refused_without_being_shown(token):
    with pytest.raises(ValueError, match="token") as caught:
        Client("127.0.0.1:1", token=token)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cert": b"pem"}, "cert and key"),
        ({"key": b"pem"}, "cert and key"),
        ({"server_name": "x"}, "server_name"),
        ({"silence": 9.9}, "silence"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(options, named):
    with pytest.raises(ValueError, match=named):
        Client("127.0.0.1:1", **options)


def test_the_pings_of_a_client_are_no_more_than_a_server_bears():
    least = dict(server_options(ServingOptions()))["grpc.http2.min_ping_interval_without_data_ms"]
    assert dict(channel_options(10.0, None))["grpc.keepalive_time_ms"] > least


async def test_the_token_goes_with_every_call(service):
    async with serving(service) as (_, port):
        async with Client(f"127.0.0.1:{port}", token="secret") as client:
            await client.generate("hi")
            await client.resume(service.requests[0].request_id)
            await client.model_info()
        async with Client(f"127.0.0.1:{port}") as client:
            await client.model_info()
    shown = [metadata.get("authorization") for metadata in service.metadata]
    assert shown == ["Bearer secret"] * 3 + [None]


async def test_tls_is_spoken_to_a_server_whose_name_is_not_its_address(service, certificate):
    key, cert, ca = certificate
    credentials = grpc.ssl_server_credentials([(key, cert)])
    async with serving(service, credentials) as (_, port):
        address = f"127.0.0.1:{port}"
        async with Client(address, ca=ca, server_name=NAME, token="secret") as client:
            assert (await client.generate("hi")).text == service.cluster.text
        for options in ({"server_name": "other.test"}, {}):
            async with Client(address, ca=ca, resume=False, **options) as client:
                with pytest.raises(paceline.Unavailable):
                    await client.generate("hi")
    assert len(service.requests) == 1


async def test_a_server_that_wants_a_certificate_gets_the_clients(service, certificate):
    key, cert, ca = certificate
    credentials = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
    trusted = {"ca": ca, "server_name": NAME, "resume": False}
    async with serving(service, credentials) as (_, port):
        async with Client(f"127.0.0.1:{port}", cert=cert, key=key, **trusted) as client:
            assert (await client.generate("hi")).text == service.cluster.text
        async with Client(f"127.0.0.1:{port}", **trusted) as client:
            with pytest.raises(paceline.Unavailable):
                await client.generate("hi")
    assert len(service.requests) == 1


async def test_a_question_goes_to_the_next_server_when_one_is_away_or_silent():
    cluster = Cluster()
    silent, well = BreakingService(cluster, "silent"), BreakingService(cluster, "well")
    silent.GetModelInfo = never
    async with serving(silent) as (_, first), serving(well) as (_, last):
        # The silent one gets its share, the ninth part of the time; those away need none.
        addresses = [f"127.0.0.1:{port}" for port in (first, *range(1, 8), last)]
        async with Client(addresses) as client:
            assert (await client.model_info(timeout=30.0)).model == "well"
            # It stays with the one that answered.
            assert client._servers.current is client._servers._servers[-1]
            await client.abort("s")
    assert cluster.aborted == ["s"]


async def never(request, context):
    await asyncio.Event().wait()


async def test_a_question_that_nobody_answers_raises_the_last_error():
    async with Client("127.0.0.1:1,127.0.0.1:2") as client:
        with pytest.raises(paceline.Unavailable):
            await client.model_info()
