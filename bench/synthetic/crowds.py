"""The one table of a bench without a model: a row for each number of sessions and way. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from bench.figures import ConfigurationFigures, Percentiles, Spread, ratio
from bench.loop_floor.serving import FLOOR, FLOOR_DRAFTS
from bench.options import PLAIN
from bench.output import Row, shown, table
from bench.report import print_setting
from bench.runner import CLIENT, ORCHESTRATOR
from bench.sections import Section
from bench.synthetic.serving import STORE
from services.engine.synthetic.spec import SyntheticSpec

STEPS = "steps alone"
OURS = (ORCHESTRATOR, "verifier", "drafter", STORE)
COLUMNS = (
    "tokens/s", "× plain", "× least loop", "accepted", "CPU ms a token", *OURS, CLIENT,
    "gap, ms p50", "p99", "first token, ms p50",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many sessions at a time, decoded in one way.

    `tokens_per_second` of all sessions together; `of_plain` and `of_floor` in the same repeat, the
    latter over the least loop, with drafts for a way that drafts. CPU in ms a token, `ours` of
    all processes but the client. `gap`: between two chunks of a stream, in ms.
    """

    sessions: int
    way: str
    tokens_per_second: float
    of_plain: Spread | None = None
    of_floor: float | None = None
    accepted: float | None = None
    ours: float | None = None
    cpu_ms: Mapping[str, float] | None = None
    gap: Percentiles | None = None
    first_token: Percentiles | None = None

    def row(self, number: str) -> Row:
        """As a line of the table, behind `number`."""
        cpu = self.cpu_ms or {}
        cells = [
            f"{self.tokens_per_second:.0f}",
            _known(self.of_plain.median if self.of_plain else None, ".2f"),
            _known(self.of_floor, ".2f"),
            _known(self.accepted, ".0%"),
            _known(self.ours, ".3f"),
            *(_known(cpu.get(role), ".3f") for role in (*OURS, CLIENT)),
            *_times(self.gap, "p50", "p99"),
            *_times(self.first_token, "p50"),
        ]
        return f"{number} {self.way}", cells


def crowds(sections: Sequence[Section], spec: SyntheticSpec) -> Iterator[Crowd]:
    """Every number of sessions, in every way that was measured; the floor of the steps last."""
    for section in sections:
        figures = {one.configuration: one for one in section.figures if one.tokens}
        for one in figures.values():
            yield _crowd(section.level, one, figures)
        seconds = 1e-3 * spec.verifier.costs().forward_ms([1] * section.level)
        yield Crowd(section.level, STEPS, ratio(section.level, seconds))


def print_crowds(
    console: Console, crowds: Sequence[Crowd], setting: Mapping[str, object], label: str
) -> None:
    """The table, headed by `label`, and what was measured."""
    widest = max((len(str(one.sessions)) for one in crowds), default=0)
    rows = [one.row(f"{one.sessions:>{widest}}") for one in crowds]
    console.print(table(label, COLUMNS, rows))
    console.print()
    print_setting(console, setting)


def _crowd(
    sessions: int, own: ConfigurationFigures, all_: Mapping[str, ConfigurationFigures]
) -> Crowd:
    cpu_ms = {role: spread.median for role, spread in own.cpu_ms.items()}
    floor = all_.get(FLOOR if own.configuration == PLAIN else FLOOR_DRAFTS)
    is_floor = own.configuration in (FLOOR, FLOOR_DRAFTS)
    return Crowd(
        sessions,
        own.configuration,
        _rate(own),
        own.speed_up,
        ratio(_rate(own), _rate(floor)) if floor and not is_floor else None,
        own.acceptance_rate if own.drafted_per_token else None,
        sum(cpu_ms.get(role, 0.0) for role in OURS) if cpu_ms else None,
        cpu_ms,
        own.gap,
        own.first_token,
    )


def _rate(figures: ConfigurationFigures) -> float:
    spread = figures.tokens_per_second
    return spread.median if spread else 0.0


def _times(times: Percentiles | None, *names: str) -> list[str]:
    return [_known(None if times is None else getattr(times, name), ".1f") for name in names]


def _known(figure: float | None, kind: str) -> str:
    return shown(None if figure is None else format(figure, kind))
