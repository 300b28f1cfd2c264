"""What a plan is made from: given numbers, and those of a bench where none are given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.plan.measured import Measured, read_bench
from bench.simulation import Agreement, Independent, Runs, StepTime
from orchestrator.core.pacing import POLICIES
from services.cluster.arguments import fractions_of, within
from services.contract.errors import StartError
from services.runtime.options import option, options

LONGEST_MS = 1e6
LARGEST_WINDOW = 64


@options
class PlanOptions:
    """The flags of `paceline plan`; None = not given."""

    source: Path | None = option(
        "JSON of paceline bench; what is given beside it counts more.", None, flag="from"
    )
    draft_ms: float | None = option("One drafted token.", None)
    draft_session_ms: float | None = option(
        "Each further session in a drafting step; left out: 0.", None
    )
    verify_ms: float | None = option("A verify of a block, beside its rows.", None)
    verify_row_ms: float | None = option("Each draft token in it; left out: 0.", None)
    verify_session_ms: float | None = option("Each further session of a batch; left out: 0.", None)
    verify_table: str = option(
        "In place of --verify-ms: by tokens in all.", "", shown="ROWS:MS,..."
    )
    plain_ms: float | None = option("A round of plain decoding; left out: --verify-ms.", None)
    acceptance: str = option("How often a draft token is right: one, or by place.", "", shown="A,B")
    hop_ms: float | None = option("One way from orchestrator to worker; left out: 0.25.", None)
    sessions: int | None = option("Sessions at a time on one verifier; left out: 1.", None)
    pacing: str = option("Pacings to plan with; left out: all.", "", shown="A,B")
    num_speculative_tokens: int = option("Most tokens drafted ahead.", 16)
    tokens: int = option("Tokens of each simulated answer.", 64)
    seed: int = option("The same seed draws the same texts.", 1)
    as_json: bool = option("One JSON object.", False, flag="json")

    def check(self) -> None:
        """Raises StartError naming a flag and its range."""
        for name in ("draft_ms", "verify_ms", "plain_ms"):
            _check(name, getattr(self, name), 1e-3, LONGEST_MS)
        for name in ("draft_session_ms", "verify_row_ms", "verify_session_ms", "hop_ms"):
            _check(name, getattr(self, name), 0.0, LONGEST_MS)
        _check("sessions", self.sessions, 1, 256)
        _check("num_speculative_tokens", self.num_speculative_tokens, 1, LARGEST_WINDOW)
        _check("tokens", self.tokens, 2, 4096)
        for name in self.pacings:
            if name not in POLICIES:
                raise StartError(f"--pacing: {name!r} is not one of {', '.join(POLICIES)}")

    @property
    def pacings(self) -> tuple[str, ...]:
        """Those asked for; all, if none were."""
        named = tuple(name.strip() for name in self.pacing.split(",") if name.strip())
        return named or POLICIES


@dataclass(frozen=True, slots=True)
class Costs:
    """What a plan rests on. `assumptions`: what was not given, in words."""

    draft: StepTime
    verify: StepTime
    text: Agreement
    hop_ms: float
    sessions: int
    assumptions: tuple[str, ...]


def costs_of(options: PlanOptions) -> Costs:
    """Given numbers before measured ones before defaults. Raises StartError, naming a flag."""
    options.check()
    measured = read_bench(options.source) if options.source else Measured()
    assumed: list[str] = []
    return Costs(
        _draft(options, measured, assumed),
        _verify(options, measured, assumed),
        _text(options, measured, assumed),
        _or(options.hop_ms, measured.hop_ms, 0.25, "a hop is 0.25 ms one way (--hop-ms)", assumed),
        options.sessions or measured.sessions or 1,
        tuple(assumed),
    )


def _verify(options: PlanOptions, measured: Measured, assumed: list[str]) -> StepTime:
    free = "a further {0} costs the verifier nothing (--verify-{0}-ms)"
    given, found = options.verify_session_ms, measured.verify_session_ms
    session_ms = _or(given, found, 0.0, free.format("session"), assumed)
    if options.verify_table:
        table = table_of("--verify-table", options.verify_table)
        return StepTime(table[0][1], 0.0, session_ms, None, table)
    verify_ms = _needed("--verify-ms", options.verify_ms, measured.verify_ms)
    row_ms = _or(options.verify_row_ms, measured.verify_row_ms, 0.0, free.format("row"), assumed)
    assumption = "a round of plain decoding takes what a verify does (--plain-ms)"
    plain_ms = _or(options.plain_ms, measured.plain_ms, verify_ms, assumption, assumed)
    return StepTime(plain_ms, row_ms, session_ms, verify_ms)


def _draft(options: PlanOptions, measured: Measured, assumed: list[str]) -> StepTime:
    one_ms = _needed("--draft-ms", options.draft_ms, measured.draft_ms)
    assumption = "a further session in a step costs the drafter nothing (--draft-session-ms)"
    return StepTime(
        one_ms, session_ms=_or(options.draft_session_ms, None, 0.0, assumption, assumed)
    )


def _text(options: PlanOptions, measured: Measured, assumed: list[str]) -> Agreement:
    """One rate: independent places. Several: by place in a block, after a miss and after hits."""
    if not options.acceptance:
        if measured.text is None:
            raise StartError("--acceptance is needed: between 0 and 1, or one rate per place")
        return measured.text
    rates = fractions_of("--acceptance", options.acceptance)
    for rate in rates:
        _check("acceptance", rate, 0.0, 1.0)
    if not rates:
        raise StartError("--acceptance: no number between 0 and 1")
    if len(rates) == 1:
        assumed.append("whether the drafter is right at a place does not depend on its neighbours")
        return Independent(rates[0])
    assumed.append("the first rate holds after a miss, the mean of the later ones after a hit")
    return Runs(rates[0], sum(rates[1:]) / (len(rates) - 1))


def table_of(flag: str, text: str) -> tuple[tuple[int, float], ...]:
    """(rows, milliseconds) from `1:30,8:34`. Raises StartError for anything else."""
    try:
        pairs = [part.split(":") for part in text.split(",") if part.strip()]
        table = tuple((int(rows), float(ms)) for rows, ms in pairs)
    except ValueError:
        raise StartError(f"{flag}: {text!r} is no list of ROWS:MS like 1:30,8:34") from None
    rows = [count for count, _ in table]
    if not rows or rows[0] < 1 or rows != sorted(set(rows)):
        raise StartError(f"{flag}: rows begin at 1 or more and grow")
    for _, milliseconds in table:
        _check(flag, milliseconds, 1e-3, LONGEST_MS)
    return table


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _needed(flag: str, given: float | None, measured: float | None) -> float:
    value = _first(given, measured)
    if value is None:
        raise StartError(f"{flag} is needed: milliseconds, or --from with a bench that measured it")
    return value


def _or(
    given: float | None, measured: float | None, default: float, assumption: str, assumed: list[str]
) -> float:
    value = _first(given, measured)
    if value is None:
        assumed.append(assumption)
        return default
    return value


def _check(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None:
        within("--" + name.removeprefix("--").replace("_", "-"), value, low, high)
