"""Reads a process's `/metrics` over HTTP."""

from dataclasses import dataclass
from urllib.request import urlopen

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from services.runtime.telemetry import Telemetry


@dataclass(frozen=True)
class Scraped:
    families: dict[str, Metric]

    def value(self, series: str, **labels: str) -> float:
        """The value of one series."""
        for family in self.families.values():
            for sample in family.samples:
                if sample.name == series and sample.labels == labels:
                    return sample.value
        raise KeyError((series, labels))


def scrape(telemetry: Telemetry) -> Scraped:
    with urlopen(f"http://{telemetry.metrics_address}/metrics", timeout=5) as page:
        text = page.read().decode()
    return Scraped({family.name: family for family in text_string_to_metric_families(text)})
