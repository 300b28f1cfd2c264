"""What a bench measured, from its JSON: costs, agreement and the way between processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.simulation import Runs
from services.contract.errors import StartError

FEWEST = 8
"""Rounds, or places, that are enough to say something."""
SHORTEST_MS = 1e-3

Round = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds; None = the bench does not tell."""

    draft_ms: float | None = None
    verify_ms: float | None = None
    verify_row_ms: float | None = None
    verify_session_ms: float | None = None
    plain_ms: float | None = None
    hop_ms: float | None = None
    text: Runs | None = None
    sessions: int | None = None


def read_bench(path: Path) -> Measured:
    """Read the JSON of `paceline bench`. Raises StartError, naming the file."""
    try:
        content = json.loads(path.read_text())
        answers = [answer for trial in content["trials"] for answer in _answers(trial)]
        sessions = int(content["setting"]["concurrency"])
        return _measured(answers, sessions)
    except OSError as error:
        raise StartError(f"--from: {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartError(f"--from: {path} is no result of paceline bench: {error!r}") from None


def _answers(trial: Mapping[str, Any]) -> Iterator[Sequence[Round]]:
    for result in trial["results"]:
        yield result["rounds"]


def _measured(answers: Sequence[Sequence[Round]], sessions: int) -> Measured:
    """Answers in which nothing was drafted at all are those of plain decoding."""
    speculating = [one for one in answers if any(r["draft_tokens"] for r in one)]
    plain = [r for one in answers if one not in speculating for r in one]
    drafted = [r for one in speculating for r in one if r["draft_tokens"]]
    verify_ms, row_ms, session_ms = _verify_line(drafted)
    timed = [r for r in drafted if r["draft_ms"]]
    return Measured(
        draft_ms=_per(sum(r["draft_ms"] for r in timed), sum(r["draft_tokens"] for r in timed)),
        verify_ms=verify_ms,
        verify_row_ms=row_ms,
        verify_session_ms=session_ms,
        plain_ms=_plain_ms(plain, session_ms or 0.0),
        hop_ms=_hop_ms([*drafted, *plain]),
        text=_runs(speculating),
        sessions=sessions,
    )


def _per(whole: float, count: int) -> float | None:
    return whole / count if count else None


def _hop_ms(rounds: Sequence[Round]) -> float | None:
    """Half of what a round takes beyond queue and forward: the median is hardly misled."""
    beyond = [r["round_ms"] - r["verify_ms"] - r["queue_ms"] for r in rounds]
    return max(0.0, 0.5 * median(beyond)) if len(beyond) >= FEWEST else None


def _plain_ms(plain: Sequence[Round], session_ms: float) -> float | None:
    """A plain round without others in its batch."""
    alone = [float(r["verify_ms"]) - session_ms * (_batch(r) - 1) for r in plain]
    return max(SHORTEST_MS, median(alone)) if len(alone) >= FEWEST else None


def _batch(one: Round) -> int:
    return max(1, int(one["batch_size"]))


# --- verify against rows ------------------------------------------------------


def _verify_line(rounds: Sequence[Round]) -> tuple[float | None, float | None, float | None]:
    """Milliseconds of a verify beside its rows, of each draft token, and of a further session.

    What the other sessions of a batch drafted is not reported: they count as if each had as
    many tokens as this one. Least squares through the medians of equal sizes.
    """
    groups: dict[tuple[int, int], list[float]] = {}
    for r in rounds:
        groups.setdefault((_batch(r), r["draft_tokens"]), []).append(r["verify_ms"])
    points = [(b, b * k, median(ms), float(len(ms))) for (b, k), ms in groups.items()]
    if len(rounds) < FEWEST:
        return None, None, None
    alone = [(k, ms, weight) for batch, k, ms, weight in points if batch == 1]
    row_ms = _slope(alone if len(alone) > 1 else [(k, ms, weight) for _, k, ms, weight in points])
    rest = [(float(b), ms - row_ms * k, weight) for b, k, ms, weight in points]
    session_ms = _slope(rest)
    whole = sum(weight * (ms - session_ms * (batch - 1)) for batch, ms, weight in rest)
    return max(SHORTEST_MS, whole / len(rounds)), row_ms, session_ms


def _slope(points: Sequence[tuple[float, float, float]]) -> float:
    """Weighted least squares of (x, y, weight), at least 0."""
    weight = sum(w for *_, w in points)
    mean_x = sum(w * x for x, _, w in points) / weight
    mean_y = sum(w * y for _, y, w in points) / weight
    spread = sum(w * (x - mean_x) ** 2 for x, _, w in points)
    if not spread:
        return 0.0
    return max(0.0, sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points) / spread)


# --- agreement ----------------------------------------------------------------


def _runs(answers: Sequence[Sequence[Round]]) -> Runs | None:
    """How often the drafter is right after it was right, and after it was wrong.

    Only places whose predecessor was judged in the same block, or ended one before.
    """
    seen: dict[bool, list[int]] = {False: [0, 0], True: [0, 0]}
    for rounds in answers:
        before: bool | None = None
        for r in rounds:
            for right in _judged(r):
                if before is not None:
                    seen[before][0] += right
                    seen[before][1] += 1
                before = right
            if not r["discarded_tokens"] and r["accepted_tokens"] == r["draft_tokens"]:
                before = None
    tries = seen[False][1] + seen[True][1]
    if tries < FEWEST:
        return None
    pooled = (seen[False][0] + seen[True][0]) / tries
    rates = {was: hits / all_ if all_ >= FEWEST else pooled for was, (hits, all_) in seen.items()}
    return Runs(rates[False], rates[True])


def _judged(one: Round) -> list[bool]:
    """The places of a block that the target judged."""
    accepted, drafted = one["accepted_tokens"], one["draft_tokens"]
    return [True] * accepted + [False] * (accepted < drafted)
