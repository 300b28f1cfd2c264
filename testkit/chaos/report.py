"""What a chaos run found, as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.figures import Percentiles
from bench.machine import machine
from bench.output import shown, table, table_console
from testkit.chaos.faults import KINDS
from testkit.chaos.run import ChaosPlan, ChaosResult
from testkit.chaos.site import ROLES

_MOST_LINES = 40


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of fault: how often, and how long the sessions that it met paused."""

    kind: str
    count: int
    met: int
    pauses: Percentiles | None
    longest: float


def rows(outcome: ChaosResult) -> list[Row]:
    """Every kind that occurred, in the order of the kinds."""
    return [_row(kind, outcome) for kind in KINDS if outcome.counts[kind]]


def _row(kind: str, outcome: ChaosResult) -> Row:
    met = [strike for strike in outcome.strikes if strike.kind == kind]
    # A session that ended with the fault has no pause.
    pauses = [strike.pause for strike in met if strike.pause > 0]
    longest = max(pauses, default=0.0)
    return Row(kind, outcome.counts[kind], len(pauses), Percentiles.of(pauses), longest)


def content(plan: ChaosPlan, outcome: ChaosResult) -> dict[str, Any]:
    """The same, for a file."""
    return {
        "machine": machine(),
        "seed": plan.seed,
        "seconds": round(outcome.seconds, 1),
        "faults": outcome.counts.total(),
        "sessions": outcome.sessions,
        "tokens": outcome.tokens,
        "law": outcome.law,
        "formed": asdict(outcome.formed),
        "leaves": [asdict(one) for one in outcome.leaves],
        "violations": outcome.violations,
        "kinds": [
            {
                "kind": row.kind,
                "count": row.count,
                "sessions_met": row.met,
                "pause_p50_ms": round(row.pauses.p50, 1) if row.pauses else None,
                "pause_p95_ms": round(row.pauses.p95, 1) if row.pauses else None,
                "pause_longest_ms": round(1e3 * row.longest, 1),
            }
            for row in rows(outcome)
        ],
    }


def show(plan: ChaosPlan, outcome: ChaosResult) -> None:
    """Print the table, and every violation."""
    console = table_console()
    title = (
        f"{outcome.counts.total()} faults, {outcome.sessions} sessions, {outcome.tokens} tokens, "
        f"{outcome.seconds:.0f} s, seed {plan.seed}"
    )
    columns = ("times", "sessions met", "pause p50 ms", "p95 ms", "longest ms")
    console.print(table(title, columns, [_cells(row) for row in rows(outcome)]))
    if (formed := outcome.formed).sessions:
        console.print(
            f"{formed.sessions} answers of JSON schemas: {formed.resumed} resumed in the middle, "
            f"{formed.moved} by more than one verifier; {formed.accepted} of {formed.drafted} "
            "draft tokens accepted"
        )
    for line in left(outcome):
        console.print(line)
    for line in outcome.law:
        console.print(f"Law of the target, {line}")
    console.print(verdict(plan, outcome.violations))


def left(outcome: ChaosResult) -> list[str]:
    """Of each role, how processes ended whose node was taken back."""
    found = []
    for role in ROLES:
        took = [one.seconds for one in outcome.leaves if one.role == role]
        if ended := sorted(seconds for seconds in took if seconds is not None):
            found.append(
                f"{role}: {len(ended)} of {len(took)} left within the notice, "
                f"half of them in {ended[len(ended) // 2]:.1f} s, all in {ended[-1]:.1f} s"
            )
        elif took:
            found.append(f"{role}: none of {len(took)} left within the notice")
    return found


def _cells(row: Row) -> tuple[str, list[str]]:
    figures = (row.pauses.p50, row.pauses.p95, 1e3 * row.longest) if row.pauses else ()
    pauses = [f"{figure:.0f}" for figure in figures] or [shown(None)] * 3
    return row.kind, [str(row.count), str(row.met), *pauses]


def verdict(plan: ChaosPlan, violations: Sequence[str]) -> str:
    """All is well, or what is not, and how to see it again."""
    if not violations:
        return "Every text as promised; no token lost, doubled or changed; nothing left behind."
    lines = [*violations[:_MOST_LINES]]
    if len(violations) > _MOST_LINES:
        lines.append(f"and {len(violations) - _MOST_LINES} more")
    return "\n".join([*lines, f"{len(violations)} violations; again with --seed {plan.seed}"])
