"""What the demo measured, as a table and as one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import JustifyMethod
from rich.table import Table

from services.console.figures import Measured


@dataclass(frozen=True, slots=True)
class Answered:
    """One prompt: with drafts, and plain on the verifier's cores and on all cores."""

    title: str
    drafted: Measured
    plain: Measured
    plain_all: Measured

    @property
    def same(self) -> bool:
        """Whether drafts changed no token."""
        return self.drafted.token_ids == self.plain.token_ids


HEADINGS = ("prompt", "tokens", "tokens/s", "plain", "all cores", "efficiency", "kept", "same")
LEGEND = (
    "plain: plain decoding on the verifier's cores; all cores: on every core of the machine; "
    "N×: how much faster Paceline was (below 1: slower). efficiency: tokens per target forward; "
    "plain = 1. kept: drafted tokens accepted. same: the same tokens as plain."
)


def figures_table(answered: Sequence[Answered]) -> Table:
    """One line per prompt and one for all: total tokens over total time."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=True)
    for heading in HEADINGS:
        side: JustifyMethod = "left" if heading == "prompt" else "right"
        table.add_column(heading, justify=side, no_wrap=True)
    for one in answered:
        table.add_row(one.title, *_row([one]))
    table.add_row("all", *_row(answered), style="bold")
    return table


def _row(answered: Sequence[Answered]) -> list[str]:
    drafted = [one.drafted for one in answered]
    fast, plain, everywhere = _speeds(answered)
    speculation = [one.complete.speculation for one in drafted]
    proposed = sum(one.num_draft_tokens for one in speculation)
    accepted = sum(one.num_accepted_draft_tokens for one in speculation)
    tokens = sum(one.tokens for one in drafted)
    forwards = sum(one.tokens / one.block_efficiency for one in drafted if one.block_efficiency)
    return [
        str(tokens),
        f"{fast:.1f}",
        f"{plain:.1f} {fast / plain:.2f}×",
        f"{everywhere:.1f} {fast / everywhere:.2f}×",
        f"{tokens / forwards:.2f}" if forwards else "-",
        f"{accepted / proposed:.0%}" if proposed else "-",
        "yes" if all(one.same for one in answered) else "no",
    ]


def _speeds(answered: Sequence[Answered]) -> tuple[float, float, float]:
    """Tokens per second: with drafts, plain on the verifier's cores, plain on all."""
    return (
        _speed([one.drafted for one in answered]),
        _speed([one.plain for one in answered]),
        _speed([one.plain_all for one in answered]),
    )


def _speed(measured: Sequence[Measured]) -> float:
    return sum(one.tokens for one in measured) / max(1e-9, sum(one.total_s for one in measured))


def verdict(answered: Sequence[Answered]) -> str:
    """Which way of using the cores was fastest in this run, and why."""
    fast, plain, everywhere = _speeds(answered)
    gain, spread = fast / plain, everywhere / plain
    reason = (
        f"as drafter and verifier the cores gave {gain:.2f} times the speed of plain decoding "
        f"on the verifier's, and all together in plain decoding {spread:.2f} times"
    )
    if fast >= max(plain, everywhere):
        return f"Fastest here: Paceline; {reason}."
    if everywhere >= plain:
        return f"Fastest here: plain decoding on all cores; {reason}."
    return f"Fastest here: plain decoding on the verifier's cores; {reason}: drafts did not pay."
