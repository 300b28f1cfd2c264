"""Collectors that are down, slow or misnamed; ports; the page of names."""

import socket
import threading
from urllib.error import URLError

import pytest

from services.contract.errors import StartError
from services.runtime.telemetry import Telemetry, document
from tests.otlp_receiver import OtlpReceiver
from tests.telemetry.scrape import scrape
from tests.telemetry.traced_world import TracedWorld


@pytest.fixture
def dead_port():
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def ends(telemetry: Telemetry) -> bool:
    """Whether a shutdown comes back and leaves no sender behind although nobody answers."""
    senders = [t for t in threading.enumerate() if "RecordProcessor" in t.name]
    assert senders
    stopping = threading.Thread(target=telemetry.shutdown, args=(0.3,), daemon=True)
    stopping.start()
    for thread in (stopping, *senders):
        thread.join(8)
    return not any(thread.is_alive() for thread in (stopping, *senders))


def test_a_silent_collector_delays_neither_the_session_nor_the_exit(start, monkeypatch, dead_port):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{dead_port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    telemetry = start()
    assert TracedWorld(telemetry, max_tokens=200).finish().lawful()
    assert ends(telemetry)


def test_a_refusing_collector_is_mentioned_at_most_once(start, monkeypatch, caplog):
    from services.runtime.telemetry import exporting

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    exporting._QUIET._next.clear()
    telemetry = start()
    for _ in range(3):
        TracedWorld(telemetry, max_tokens=100).finish()
    assert ends(telemetry)
    assert len([record for record in caplog.records if "otlp" in record.name]) == 1


def test_a_collector_that_holds_every_batch_back_does_not_hold_the_session(start, monkeypatch):
    held = threading.Event()
    with OtlpReceiver() as receiver:
        take = receiver.take
        receiver.take = lambda add: (held.wait(20), take(add))
        for name, value in receiver.environment.items():
            monkeypatch.setenv(name, value)
        telemetry = start()
        assert TracedWorld(telemetry, max_tokens=200).finish().finished
        assert receiver.spans == []
        held.set()
        telemetry.shutdown(20)
        assert len(receiver.named("Generate")) == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_METRICS_EXPORTER", "console"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
    ],
)
def test_a_variable_we_cannot_satisfy_is_named(start, monkeypatch, variable, value):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(StartError, match=f"{variable}.*{value}"):
        start()


@pytest.mark.parametrize("off", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}])
def test_tracing_can_be_turned_off(receiver, start, monkeypatch, off):
    for name, value in off.items():
        monkeypatch.setenv(name, value)
    telemetry = start(metrics_port=0)
    assert TracedWorld(telemetry).finish().lawful()
    scrape(telemetry)
    telemetry.shutdown()
    assert receiver.spans == []


def test_the_metrics_port_is_bound_at_once_and_free_afterwards(telemetry, start):
    address = telemetry.metrics_address
    port = int(address.rpartition(":")[2])
    with pytest.raises(StartError, match=str(port)):
        start(metrics_port=port)
    telemetry.shutdown()
    assert telemetry.metrics_address is None
    telemetry.shutdown()
    with pytest.raises(URLError), _at(address) as page:
        page.read()


def _at(address):
    from urllib.request import urlopen

    return urlopen(f"http://{address}/metrics", timeout=2)


def test_without_a_port_nothing_listens(start):
    assert start().metrics_address is None


def test_the_page_of_names_is_up_to_date():
    assert document.main(["--check"]) == 0


def test_a_page_that_is_not_up_to_date_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(document, "PAGE", tmp_path / "docs" / "telemetry.md")
    assert document.main(["--check"]) == 1
    assert "not up to date" in capsys.readouterr().out
    assert (document.main([]), document.main(["--check"])) == (0, 0)
