"""One verifier and its share of a drafter, with so many sessions at a time: what they take.

All that `fleets` knows of decoding comes from here, and all of this from the simulator, with the
served pacing, gathering and chunked prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from statistics import fmean

from bench.plan.capacity import EVENT_MS
from bench.simulation import PLAIN, Agreement, Independent, Scenario, Simulation, StepTime
from bench.simulation.report import quantile
from bench.simulation.scenario import Prompts
from bench.simulation.session import Account
from bench.simulation.verifier import SERVED

LONGEST_PIECE = 64
"""Tokens; a longer answer is simulated in pieces, of which the first has the prompt."""
MEASURED = 20
"""Sessions, or more where more are served at a time."""
CHAINED_BLOCKS = 2
"""As served by default."""
SPREAD = 0.5
"""Answers are longer and shorter by up to this share, at random."""
QUANTILES = 20
RATIOS = tuple(4.0**power for power in range(-2, 5))
"""Verifiers for each drafter that are simulated."""


@dataclass(frozen=True, slots=True)
class Way:
    """How to decode: plainly, or with a drafter that is beside its verifier or apart.

    `window`: most tokens drafted ahead. Plain decoding has no `draft`.
    """

    name: str
    pacing: str = PLAIN
    draft: StepTime | None = None
    text: Agreement = field(default_factory=lambda: Independent(0.0))
    beside: bool = False
    window: int = 1

    @property
    def apart(self) -> bool:
        """Whether drafters have nodes of their own."""
        return self.draft is not None and not self.beside


@dataclass(frozen=True, slots=True)
class Requests:
    """What each request asks for, and what a prompt's token adds to a verifier's step."""

    prompt_tokens: int
    answer_tokens: int
    prompt_row_ms: float = 0.0

    @property
    def pieces(self) -> int:
        """In how many an answer is simulated."""
        return ceil(self.answer_tokens / LONGEST_PIECE)


@dataclass(frozen=True, slots=True)
class Cell:
    """What `sessions` at a time take on one verifier.

    `token_ms`: a token after the first, at the mean. At `QUANTILES` evenly spaced quantiles over
    requests, in milliseconds: `token` what it takes beyond that mean, `first` from the opening to
    the first token.
    """

    sessions: int
    tokens_per_s: float
    token_ms: float
    token: tuple[float, ...]
    first: tuple[float, ...]

    @property
    def session_ms(self) -> float:
        """What a session takes for a token, its prompt included."""
        return 1e3 * self.sessions / self.tokens_per_s


class Cells:
    """Simulates each cell once.

    `ratio`: how many verifiers share a drafter; below 1, they have several.
    """

    def __init__(self, verify: StepTime, hop_ms: float, requests: Requests, seed: int) -> None:
        self.requests = requests
        self._base = Scenario(
            verify=verify,
            hop_ms=hop_ms,
            cpu_ms=EVENT_MS,
            max_in_flight=CHAINED_BLOCKS,
            plain_ahead=True,
            gather_ms=SERVED.gather_ms,
            seed=seed,
        )
        self._found: dict[tuple[Way, float, int], Cell] = {}

    def scenario(self, way: Way, ratio: float) -> Scenario:
        """One verifier and one drafter, as slow as if the others' sessions were there, too."""
        scenario, draft = replace(self._base, pacing=way.pacing), way.draft
        if draft is None:
            return scenario
        if way.apart:
            draft = shared(draft, ratio)
        return replace(scenario, draft=draft, text=way.text, window=way.window, beside=way.beside)

    def at(self, way: Way, ratio: float, sessions: int) -> Cell:
        """The cell of `sessions` at a time, between those that are simulated."""
        if way.draft is None or not way.apart or not way.draft.session_ms:
            return self._at(way, 1.0, sessions)
        few = max((one for one in RATIOS if one <= ratio), default=RATIOS[0])
        many = min((one for one in RATIOS if one >= ratio), default=RATIOS[-1])
        if few >= many:
            return self._at(way, many, sessions)
        share = (ratio - few) / (many - few)
        return between(self._at(way, few, sessions), self._at(way, many, sessions), share)

    def _at(self, way: Way, ratio: float, sessions: int) -> Cell:
        known = points(2 * sessions)
        low = max(point for point in known if point <= sessions)
        high = min(point for point in known if point >= sessions)
        if low == high:
            return self._simulated(way, ratio, low)
        share = (sessions - low) / (high - low)
        return between(self._simulated(way, ratio, low), self._simulated(way, ratio, high), share)

    def _simulated(self, way: Way, ratio: float, sessions: int) -> Cell:
        key = (way, ratio, sessions)
        if key not in self._found:
            self._found[key] = measure(self.scenario(way, ratio), self.requests, sessions)
        return self._found[key]


def shared(draft: StepTime, ratio: float) -> StepTime:
    """A drafter's step of b sessions where it takes `ratio` times b: those of other verifiers."""
    further = draft.session_ms * (ratio - 1.0)
    return replace(
        draft, one_ms=max(draft.one_ms + further, 1e-3), session_ms=ratio * draft.session_ms
    )


def measure(scenario: Scenario, requests: Requests, sessions: int) -> Cell:
    """Simulate `sessions` at a time; those that came before all were, or after, do not count."""
    pieces = requests.pieces
    measured = max(MEASURED, sessions, 2 * pieces)
    simulation = Simulation(
        replace(
            scenario,
            prompts=Prompts(requests.prompt_tokens, requests.prompt_row_ms, every=pieces),
            tokens=max(2, ceil(requests.answer_tokens / pieces)),
            spread=SPREAD,
            # Requests do not know when steps begin.
            pause_ms=scenario.verify.at(sessions, sessions),
            concurrency=sessions,
            sessions=2 * sessions + measured,
        )
    )
    simulation.run()
    ended = {int(one.name): one.account for one in simulation.ended_sessions}
    steady = range(sessions, sessions + measured)
    first = [ended[number] for number in steady if number % pieces == 0]
    later = [ended[number] for number in steady if number % pieces]
    return _cell(sessions, requests.answer_tokens, pieces, first, later)


def _cell(
    sessions: int, answer: int, pieces: int, first: Sequence[Account], later: Sequence[Account]
) -> Cell:
    """`first`: the pieces that answers begin with; of `pieces` one is."""
    every = [*first, *later]
    token_ms = sum(one.decode_ms for one in every) / sum(one.tokens - 1 for one in every)
    # What the pieces of an answer take varies independently.
    beyond = [(one.token_ms - token_ms) / sqrt(pieces) for one in every]
    first_ms = [one.first_ms for one in first]
    took_ms = fmean(first_ms) + (answer - pieces) * token_ms
    if later:
        took_ms += (pieces - 1) * fmean(one.first_ms for one in later)
    tokens_per_s = 1e3 * sessions * answer / took_ms
    return Cell(sessions, tokens_per_s, token_ms, _quantiles(beyond), _quantiles(first_ms))


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(quantile(values, (place + 0.5) / QUANTILES) for place in range(QUANTILES))


def between(low: Cell, high: Cell, share: float) -> Cell:
    """The times lie on straight lines."""

    def line(a: float, b: float) -> float:
        return a + share * (b - a)

    sessions = line(low.sessions, high.sessions)
    return Cell(
        round(sessions),
        1e3 * sessions / line(low.session_ms, high.session_ms),
        line(low.token_ms, high.token_ms),
        tuple(map(line, low.token, high.token)),
        tuple(map(line, low.first, high.first)),
    )


def points(most: int) -> list[int]:
    """How many sessions at a time are simulated: 1, 2, 3, 4, 6, 8, 12, 16, ... up to `most`."""
    found = [1, 2, 3]
    while found[-1] < most:
        found.append(2 * found[-2])
    return [*[point for point in found if point < most], most]
