"""Who gets past TLS to `/metrics`, and that nobody keeps others from it."""

import logging
import socket
import ssl
from dataclasses import replace
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from services.contract.errors import StartError
from services.contract.types import Role
from services.runtime.serving import TlsFiles, tls_contexts
from services.runtime.settings import WorkerSettings
from services.runtime.telemetry import names
from services.runtime.worker_main import tracing
from tests.certificates import Authority, trusting

ATTEMPTS = 100
READ = "paceline_streams_active 3.0"


@pytest.fixture
def ours(tmp_path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def serve(start):
    """Serves `/metrics` with these files; its address."""

    def serve(files: TlsFiles) -> str:
        telemetry = start(metrics_port=0, metrics_tls=tls_contexts(files))
        telemetry.gauge(names.STREAMS, lambda: [(3, ())])
        return telemetry.metrics_address

    return serve


def asked(address: str, files: TlsFiles, timeout: float = 10.0) -> str:
    """What a scraper with these files reads."""
    context = ssl.create_default_context(cafile=files.ca)
    if files.cert is not None:
        context.load_cert_chain(files.cert, files.key)
    with urlopen(f"https://{address}/metrics", timeout=timeout, context=context) as page:
        return page.read().decode()


def serial(address: str, files: TlsFiles) -> str:
    """Of the certificate that is shown there."""
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        return connection.getpeercert()["serialNumber"]


def test_a_scraper_with_a_certificate_of_the_ca_reads_and_nobody_else(ours, serve, tmp_path):
    others = Authority(tmp_path / "others")
    client = ours.issue("client", "client")
    strangers = {
        "no certificate": TlsFiles(ca=ours.path),
        "an expired one": ours.issue("expired", "client", expired=True),
        "one of another CA": trusting(others.issue("client", "client"), ours),
        "who trusts another CA": trusting(client, others),
    }
    address = serve(ours.issue("server"))
    assert READ in asked(address, client)
    for files in strangers.values():
        with pytest.raises((URLError, OSError)):
            asked(address, files)
    with pytest.raises((URLError, OSError)), urlopen(f"http://{address}/metrics", timeout=10):
        pass
    assert READ in asked(address, client)


def test_a_hundred_attempts_without_a_certificate_are_refused_and_leave_no_traceback(
    ours, serve, caplog, capfd
):
    caplog.set_level(logging.INFO)
    address = serve(ours.issue("server"))
    for _ in range(ATTEMPTS):
        with pytest.raises((URLError, OSError)):
            asked(address, TlsFiles(ca=ours.path))
    assert "Traceback" not in capfd.readouterr().err
    assert not [record for record in caplog.records if "/metrics" in record.getMessage()]


def test_without_a_ca_anybody_who_trusts_the_server_reads(ours, serve):
    assert READ in asked(serve(replace(ours.issue("server"), ca=None)), TlsFiles(ca=ours.path))


def test_new_files_count_for_the_next_connection_and_broken_ones_never(ours, serve, caplog):
    client, server = ours.issue("client", "client"), ours.issue("server")
    address = serve(server)
    before = serial(address, client)
    newer = ours.issue("newer")
    newer.cert.replace(server.cert)
    newer.key.replace(server.key)
    after = serial(address, client)
    assert after != before
    server.cert.write_text("half of a cert")
    assert serial(address, client) == after
    assert serial(address, client) == after
    assert len([r for r in caplog.records if "going on with what was read" in r.message]) == 1


def test_a_client_that_never_speaks_keeps_nobody_waiting(ours, serve):
    address = serve(ours.issue("server"))
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))):
        assert READ in asked(address, ours.issue("client", "client"))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "tls_cert and tls_key: a server needs both"),
        ({"tls_cert": "none.pem", "tls_key": "none.key"}, "tls_cert: cannot read none.pem"),
    ],
)
def test_a_page_that_could_not_be_served_over_tls_is_refused_at_the_start(given, named):
    settings = WorkerSettings(worker_id="w", metrics_port=0, metrics_tls=True, **given)
    with pytest.raises(StartError, match=named), tracing(settings, Role.VERIFIER):
        pytest.fail("it began")
