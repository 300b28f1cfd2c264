"""A real Prometheus on this machine, for as long as it is needed.

with prometheus(tool, ["127.0.0.1:9464"]) as server:
    server.wait_until_scraped()
    [sample] = server.query("sum(paceline_streams_active)")
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from services.runtime.ports import free_port

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
_POLL_SECONDS = 0.05


class PrometheusError(Exception):
    """What Prometheus says of a question it refuses, or of a start that failed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series at one moment. A scalar has no labels."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """A client of the server at `address` (HOST:PORT), which scrapes `targets`."""

    def __init__(self, address: str, targets: Sequence[str] = ()) -> None:
        self.address = address
        self._targets = tuple(targets)

    def query(self, expr: str, at: float | None = None) -> list[Sample]:
        """What an expression says, now or at a Unix time. Raises PrometheusError.

        No series makes no sample; neither does a stale one.
        """
        moment = {} if at is None else {"time": at}
        data = self._ask("query", query=expr, **moment)
        match data["resultType"]:
            case "vector":
                return [Sample(one["metric"], float(one["value"][1])) for one in data["result"]]
            case "scalar":
                return [Sample({}, float(data["result"][1]))]
            case other:
                raise PrometheusError(f"{expr} gives a {other}, and only a vector has samples")

    def wait_until_scraped(self, timeout: float = 30.0) -> None:
        """Wait until every target answers. Raises PrometheusError with what is in the way."""
        deadline = time.monotonic() + timeout
        while (up := sum(sample.value for sample in self.query("up"))) < len(self._targets):
            if time.monotonic() > deadline:
                raise PrometheusError(
                    f"{up:g} of {len(self._targets)} targets answer: {self._complaints()}"
                )
            time.sleep(_POLL_SECONDS)

    def _complaints(self) -> str:
        """Why targets do not answer."""
        targets = self._ask("targets", state="active")["activeTargets"]
        said = [f"{one['scrapeUrl']}: {one['lastError'] or one['health']}" for one in targets]
        return "; ".join(said)

    def _ask(self, question: str, **parameters: object) -> Any:
        url = f"http://{self.address}/api/v1/{question}?{urlencode(parameters)}"
        try:
            with urlopen(url, timeout=_ANSWER_SECONDS) as answer:
                return json.load(answer)["data"]
        except HTTPError as refusal:
            raise PrometheusError(_message(refusal)) from refusal
        except OSError as error:
            raise PrometheusError(f"{self.address} does not answer: {error}") from error


def _message(refusal: HTTPError) -> str:
    """Prometheus's own words, where the answer holds any."""
    body = refusal.read().decode(errors="replace")
    try:
        return str(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        return body.strip() or str(refusal)


@contextmanager
def prometheus(
    program: str,
    targets: Sequence[str],
    *,
    interval_s: float = 1.0,
    rules: Path | None = None,
) -> Iterator[Prometheus]:
    """A server that scrapes `targets` (HOST:PORT) every `interval_s` seconds.

    It evaluates the `rules` as often. It keeps its data in a folder that goes with it, and
    listens on loopback alone. Raises PrometheusError with its last line if it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-prometheus-") as name:
        folder, address = Path(name), f"127.0.0.1:{free_port()}"
        config, log = folder / "prometheus.json", folder / "log"
        # JSON is YAML, too.
        config.write_text(json.dumps(_configuration(targets, interval_s, rules)))
        command = [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(process, address, log)
            yield Prometheus(address, targets)
        finally:
            _stop(process)


def _configuration(
    targets: Sequence[str], interval_s: float, rules: Path | None
) -> dict[str, object]:
    every = f"{max(1, round(1e3 * interval_s))}ms"
    scraped = {"job_name": "paceline", "static_configs": [{"targets": list(targets)}]}
    return {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": [str(rules.resolve())] if rules is not None else [],
        "scrape_configs": [scraped],
    }


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _is_ready(address):
        if process.poll() is not None:
            raise PrometheusError(f"Prometheus did not start: {_last_line(log)}")
        if time.monotonic() > deadline:
            raise PrometheusError(f"Prometheus is not ready after {_START_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _is_ready(address: str) -> bool:
    try:
        with urlopen(f"http://{address}/-/ready", timeout=1.0):
            return True
    except OSError:
        return False


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
