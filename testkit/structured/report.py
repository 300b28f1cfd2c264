"""What a run found, as tables and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.machine import machine
from bench.output import table, table_console
from testkit.structured.run import VERIFIER_KILLED, Ended, StructuredResult

_MOST_LINES = 40


@dataclass(frozen=True, slots=True)
class Sums:
    """Some generations together. `moves`: sessions opened at a verifier anew."""

    generations: int
    tokens: int
    drafted: int
    accepted: int
    rejected: int
    resumes: int
    moves: int
    by_length: int
    valid: int

    @classmethod
    def of(cls, ended: Sequence[Ended]) -> Sums:
        """A generation is valid if it ended by itself and nothing about it is wrong."""
        drafted, accepted = sum(one.drafted for one in ended), sum(one.accepted for one in ended)
        return cls(
            generations=len(ended),
            tokens=sum(one.tokens for one in ended),
            drafted=drafted,
            accepted=accepted,
            rejected=drafted - accepted,
            resumes=sum(one.resumes for one in ended),
            moves=sum(one.moves for one in ended),
            by_length=sum(one.finish == "length" for one in ended),
            valid=sum(not one.wrong for one in ended),
        )


def faults(outcome: StructuredResult) -> Counter[str]:
    """How often each kind of fault struck."""
    return Counter(one.fault for one in outcome.struck)


def content(outcome: StructuredResult, seconds: float) -> dict[str, Any]:
    """The whole report, for a file."""
    return {
        "machine": machine(),
        "seconds": round(seconds, 1),
        "all": asdict(Sums.of(outcome.ended)),
        "forms": _by(outcome, lambda one: one.form),
        "ways": _by(outcome, lambda one: one.way),
        "faults": faults(outcome),
        "generations_met": sum(one.met for one in outcome.struck),
        "wrong": outcome.wrong,
    }


def show(outcome: StructuredResult) -> None:
    """Print a line for each format and each way, the faults, and everything that is wrong."""
    console, columns = table_console(), [name.replace("_", " ") for name in Sums.__slots__]
    parts = {"form": _by(outcome, lambda one: one.form), "way": _by(outcome, lambda one: one.way)}
    for title, part in parts.items():
        rows = {**part, "all": asdict(Sums.of(outcome.ended))}
        cells = [(name, [str(figure) for figure in row.values()]) for name, row in rows.items()]
        console.print(table(title, columns, cells))
        console.print()
    print(verdict(outcome))


def verdict(outcome: StructuredResult) -> str:
    """How many are valid, through what, and what is not."""
    sums, struck = Sums.of(outcome.ended), faults(outcome)
    met = sum(one.met for one in outcome.struck)
    lines = [
        f"{sums.valid} of {sums.generations} valid; {sums.resumes} resumed in the middle, "
        f"{sums.moves} times opened at a verifier anew; {struck[VERIFIER_KILLED]} verifiers killed "
        f"and {struck.total() - struck[VERIFIER_KILLED]} cut off, which met {met} generations."
    ]
    lines += outcome.wrong[:_MOST_LINES]
    if len(outcome.wrong) > _MOST_LINES:
        lines.append(f"and {len(outcome.wrong) - _MOST_LINES} more")
    return "\n".join(lines)


def _by(outcome: StructuredResult, name: Callable[[Ended], str]) -> dict[str, dict[str, int]]:
    names = dict.fromkeys(map(name, sorted(outcome.ended, key=lambda one: one.number)))
    return {own: asdict(Sums.of([e for e in outcome.ended if name(e) == own])) for own in names}
