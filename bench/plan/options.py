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
MOST = 1e6
MOST_DRAFTERS = 8
PRICED = (
    *("drafter_price", "requests_per_s", "tokens_per_s", "drafters"),
    *("goal_token_p50_ms", "goal_token_p95_ms", "goal_first_p95_ms"),
)
"""They say nothing without a price."""
COUNTS = {
    "verifiers_per_node": (1, 64),
    "drafters_per_node": (1, 256),
    "spare_nodes": (0, 1000),
    "prompt_tokens": (1, 16384),
    "answer_tokens": (2, 4096),
    "most_sessions": (1, 128),
    "most_drafter_sessions": (1, 1024),
}


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
    verifier_price: float | None = option(
        "Of a node of verifiers for an hour: how many nodes of each kind, and what they cost.",
        None,
        section="Prices and traffic",
    )
    drafter_price: float | None = option("Of a node of drafters; left out: as of verifiers.", None)
    other_price: float = option("Of all the rest for an hour: orchestrators, Redis.", 0.0)
    currency: str = option("What stands beside prices.", "")
    verifiers_per_node: int = option("Verifiers that a node holds.", 1)
    drafters_per_node: int = option("Drafters that a node holds.", 1)
    spare_nodes: int = option("Nodes of each kind more than are needed.", 0)
    average_load: float = option("Tokens over the day, as a share of those at the peak.", 1.0)
    requests_per_s: float | None = option("At the peak.", None)
    tokens_per_s: float | None = option("In place of --requests-per-s: of all answers.", None)
    prompt_tokens: int = option("Of a request.", 128)
    prompt_row_ms: float | None = option(
        "What each of them adds to a step; left out: as a draft token.", None
    )
    answer_tokens: int = option("Of an answer, at the mean.", 128)
    goal_token_p50_ms: float | None = option("The most for a token after the first, p50.", None)
    goal_token_p95_ms: float | None = option("The same, p95.", None)
    goal_first_p95_ms: float | None = option("The most for the first token, p95.", None)
    most_sessions: int = option("Sessions that a verifier holds at a time.", 32)
    most_drafter_sessions: int = option("Sessions that a drafter holds at a time.", 64)
    drafters: str = option(
        "In place of --draft-ms and --acceptance: drafters to choose from.",
        "",
        shown="NAME@pool:MS:RATE[/RATE],NAME@verifier:...",
    )

    def check(self) -> None:
        """Raises StartError naming a flag and its range."""
        for name in ("draft_ms", "verify_ms", "plain_ms"):
            _check(name, getattr(self, name), 1e-3, LONGEST_MS)
        for name in ("draft_session_ms", "verify_row_ms", "verify_session_ms", "hop_ms"):
            _check(name, getattr(self, name), 0.0, LONGEST_MS)
        _check("sessions", self.sessions, 1, 256)
        _check("num_speculative_tokens", self.num_speculative_tokens, 1, LARGEST_WINDOW)
        _check("tokens", self.tokens, 2, 4096)
        self._check_prices()
        for name in self.pacings:
            if name not in POLICIES:
                raise StartError(f"--pacing: {name!r} is not one of {', '.join(POLICIES)}")

    def _check_prices(self) -> None:
        for name in ("verifier_price", "drafter_price"):
            _check(name, getattr(self, name), 1e-6, MOST)
        _check("other_price", self.other_price, 0.0, MOST)
        _check("average_load", self.average_load, 1e-3, 1.0)
        for name in ("requests_per_s", "tokens_per_s"):
            _check(name, getattr(self, name), 1e-3, MOST)
        _check("prompt_row_ms", self.prompt_row_ms, 0.0, LONGEST_MS)
        for name in ("goal_token_p50_ms", "goal_token_p95_ms", "goal_first_p95_ms"):
            _check(name, getattr(self, name), 1e-3, LONGEST_MS)
        if self.verifier_price is None and (given := [one for one in PRICED if getattr(self, one)]):
            raise StartError(f"{_flag(given[0])}: needs --verifier-price")
        for name, (low, high) in COUNTS.items():
            _check(name, getattr(self, name), low, high)
        if len(self.currency) > 8 or not self.currency.isprintable():
            raise StartError("--currency: at most 8 characters that can be printed")

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

    @property
    def verify_row_ms(self) -> float:
        """What a further row adds to a verifier's step, over all of a table."""
        verify = self.verify
        if len(verify.table) < 2:
            return verify.row_ms
        (fewest, low), (most, high) = verify.table[0], verify.table[-1]
        return max(0.0, (high - low) / (most - fewest))


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter to choose. `beside`: on its verifier's node, in turns with it."""

    name: str
    beside: bool
    draft: StepTime
    text: Agreement


def costs_of(options: PlanOptions) -> Costs:
    """Given numbers before measured ones before defaults. Raises StartError, naming a flag.

    With a list of drafters, the one of the other flags is not asked for.
    """
    options.check()
    measured = read_bench(options.source) if options.source else Measured()
    assumed: list[str] = []
    listed = bool(options.drafters)
    return Costs(
        StepTime(1.0) if listed else _draft(options, measured, assumed),
        _verify(options, measured, assumed),
        Independent(0.0) if listed else _text(options, measured, assumed),
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


def drafting_of(options: PlanOptions, costs: Costs) -> list[Drafting]:
    """The drafters of `--drafters`, or the one of the other flags, apart. Raises StartError."""
    if not options.drafters:
        return [Drafting("drafter@pool", False, costs.draft, costs.text)]
    listed = [part.strip() for part in options.drafters.split(",") if part.strip()]
    found = [_drafting(one, options.draft_session_ms or 0.0) for one in listed]
    if len({one.name for one in found}) < len(found) or not 0 < len(found) <= MOST_DRAFTERS:
        raise StartError(f"--drafters: 1 to {MOST_DRAFTERS} different names are needed")
    return found


def _drafting(text: str, session_ms: float) -> Drafting:
    name, *numbers = text.split(":")
    _, _, place = name.rpartition("@")
    if len(numbers) != 2 or place not in ("pool", "verifier") or not name.isprintable():
        example = "model@pool:6.5:0.5 or ngram@verifier:0.1:0.4/0.7"
        raise StartError(f"--drafters: {text!r} is not like {example}")
    [draft_ms] = fractions_of("--drafters", numbers[0]) or (0.0,)
    _check("drafters", draft_ms, 1e-3, LONGEST_MS)
    agreement = agreement_of("--drafters", numbers[1].replace("/", ","), [])
    return Drafting(name, place == "verifier", StepTime(draft_ms, session_ms=session_ms), agreement)


def _draft(options: PlanOptions, measured: Measured, assumed: list[str]) -> StepTime:
    one_ms = _needed("--draft-ms", options.draft_ms, measured.draft_ms)
    assumption = "a further session in a step costs the drafter nothing (--draft-session-ms)"
    return StepTime(
        one_ms, session_ms=_or(options.draft_session_ms, None, 0.0, assumption, assumed)
    )


def _text(options: PlanOptions, measured: Measured, assumed: list[str]) -> Agreement:
    if not options.acceptance:
        if measured.text is None:
            raise StartError("--acceptance is needed: between 0 and 1, or one rate per place")
        return measured.text
    return agreement_of("--acceptance", options.acceptance, assumed)


def agreement_of(flag: str, text: str, assumed: list[str]) -> Agreement:
    """One rate: independent places. Several: by place in a block, after a miss and after hits."""
    rates = fractions_of(flag, text)
    for rate in rates:
        _check(flag, rate, 0.0, 1.0)
    if not rates:
        raise StartError(f"{flag}: no number between 0 and 1")
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
        within(_flag(name), value, low, high)


def _flag(name: str) -> str:
    return "--" + name.removeprefix("--").replace("_", "-")
