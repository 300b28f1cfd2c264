"""A real Prometheus on this machine, for as long as it is needed."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from services.runtime.ports import free_port
from tests.tools import tool
from tests.waiting import wait_until


class Prometheus:
    """A client of the server at `address` (HOST:PORT)."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"

    @property
    def ready(self) -> bool:
        """Whether it answers questions."""
        try:
            with urlopen(f"{self._url}/-/ready", timeout=1.0):
                return True
        except OSError:
            return False

    def query(self, expr: str) -> list[float]:
        """The value of each series of an expression now, in any order; stale ones have none."""
        asked = f"{self._url}/api/v1/query?{urlencode({'query': expr})}"
        with urlopen(asked, timeout=30.0) as answer:
            return [float(one["value"][1]) for one in json.load(answer)["data"]["result"]]


@contextmanager
def prometheus(targets: Sequence[str], interval_s: float, rules: Path) -> Iterator[Prometheus]:
    """A server that scrapes `targets` (HOST:PORT) and evaluates `rules` every `interval_s` seconds.

    It keeps its data in a folder that goes with it, and listens on loopback alone.
    """
    program, every = tool("prometheus", "apt install prometheus"), f"{round(1e3 * interval_s)}ms"
    scraped = {"job_name": "paceline", "static_configs": [{"targets": list(targets)}]}
    configuration = {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": [str(rules.resolve())],
        "scrape_configs": [scraped],
    }
    with tempfile.TemporaryDirectory() as name:
        config, log, address = Path(name) / "config", Path(name) / "log", f"127.0.0.1:{free_port()}"
        # JSON is YAML, too.
        config.write_text(json.dumps(configuration))
        flags = ["--log.level=warn", f"--web.listen-address={address}"]
        flags += [f"--config.file={config}", f"--storage.tsdb.path={Path(name) / 'data'}"]
        with log.open("wb") as output:
            process = subprocess.Popen([program, *flags], stdout=output, stderr=subprocess.STDOUT)
        server = Prometheus(address)
        try:
            wait_until(lambda: server.ready or process.poll() is not None, problem=log.read_text)
            assert process.poll() is None, log.read_text()
            yield server
        finally:
            process.kill()
            process.wait()
