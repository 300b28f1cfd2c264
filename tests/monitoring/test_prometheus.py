"""The Prometheus of tests and benches: it scrapes, answers, and says what is wrong."""

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, start_http_server

from services.runtime.ports import free_port
from testkit.prometheus import Prometheus, PrometheusError, Sample, prometheus
from tests.tools import tool
from tests.waiting import wait_until

INTERVAL_SECONDS = 0.2


@pytest.fixture(scope="module")
def program() -> str:
    return tool("prometheus", "apt install prometheus")


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """Serves one counter, which stands at 3."""
    registry = CollectorRegistry()
    Counter("eggs", "Eggs.", ["colour"], registry=registry).labels("brown").inc(3)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def dead() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def server(program, target, dead) -> Iterator[Prometheus]:
    """Scrapes the target, and one that does not answer."""
    with prometheus(program, [target, dead], interval_s=INTERVAL_SECONDS) as running:
        wait_until(lambda: len(running.query("up")) > 1 and running.query("eggs_total"))
        yield running


def test_what_is_scraped_can_be_asked_for_with_its_labels(server, target):
    [sample] = server.query("eggs_total")
    assert (sample.value, sample.labels["colour"]) == (3, "brown")
    assert sample.labels["instance"] == target
    assert server.query("1 + 1") == [Sample({}, 2.0)]
    assert server.query("no_such_metric") == []


@pytest.mark.parametrize(
    ("promql", "complaint"), [("sum(", "parse error"), ("eggs_total[1m]", "only a vector")]
)
def test_a_question_that_cannot_be_answered_is_refused_in_prometheus_own_words(
    server, promql, complaint
):
    with pytest.raises(PrometheusError, match=complaint):
        server.query(promql)


def test_a_target_that_does_not_answer_is_named(server, dead):
    with pytest.raises(PrometheusError, match=f"1 of 2 targets.*{dead}.*refused"):
        server.wait_until_scraped(0.5)


def test_rules_that_are_none_end_the_start_with_what_is_wrong(program, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("groups: [{name: g, rules: [{record: r, expr: 'sum('}]}]")
    with (
        pytest.raises(PrometheusError, match="did not start"),
        prometheus(program, [], rules=rules),
    ):
        raise AssertionError("it started")


def test_nothing_is_left_of_it(program, target):
    with prometheus(program, [target]) as running:
        address = running.address
    with pytest.raises(PrometheusError, match="does not answer"):
        Prometheus(address).query("1")
