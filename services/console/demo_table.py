"""What the demo measured, as two tables and one sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline import DraftSource
from rich.console import JustifyMethod
from rich.table import Table

from services.cluster.figures import NAMES, Measured


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


DECODING = ("decoding, tokens/s", "drafted", "plain", "all cores", "efficiency", "kept", "same")
TIMES = ("first token, ms", "drafted", "plain", "all cores", "| tokens/s", "plain", "all cores")
LEGEND = (
    "decoding: tokens/s after the first token. tokens/s: of whole answers, prompts included. "
    "plain: plain decoding on the verifier's cores; all cores: on every core of the machine; "
    "N×: how much faster Paceline was (below 1: slower). efficiency: tokens per target forward; "
    "plain = 1. kept: drafted tokens accepted. same: the same tokens as plain. Of several sources "
    "that say a token, it counts for the one that says most. the target's texts: what follows one "
    "to four tokens in texts that it wrote; single tokens: what it says after one. No answer found "
    "anything of those before it: no cached prompt, no phrase of another text."
)

Speed = Callable[[Sequence[Measured]], float]


def decoding_table(answered: Sequence[Answered]) -> Table:
    """Speed after the first token: one line per prompt, and one for all of tokens over time."""
    return _table(DECODING, answered, lambda own: [*_ratios(own, decoding), *_drafts(own)])


def times_table(answered: Sequence[Answered]) -> Table:
    """Time to the first token (of all: the mean), and speed by the whole time."""
    return _table(TIMES, answered, lambda own: [*_first_tokens(own), *_ratios(own, whole)])


def sources_table(answered: Sequence[Answered]) -> Table:
    """What each source of drafts brought: accepted of drafted tokens, by prompt and of all."""
    columns = [[one] for one in answered] + [list(answered)]
    counts = [_by_source([one.drafted for one in column]) for column in columns]
    table = _empty(("drafts kept from", *(one.title for one in answered), "all"))
    for source, name in NAMES.items():
        if source in counts[-1]:
            table.add_row(name, *(_of(*column.get(source, (0, 0))) for column in counts))
    return table


def _by_source(measured: Sequence[Measured]) -> dict[DraftSource, tuple[int, int]]:
    """(accepted, drafted) of every source that there was."""
    counts: dict[DraftSource, tuple[int, int]] = {}
    for one in (told for each in measured for told in each.complete.speculation.sources):
        accepted, drafted = counts.get(one.source, (0, 0))
        counts[one.source] = (
            accepted + one.num_accepted_draft_tokens,
            drafted + one.num_draft_tokens,
        )
    return counts


def _of(accepted: int, drafted: int) -> str:
    return f"{accepted} of {drafted}" if drafted else "-"


def _table(
    headings: Sequence[str],
    answered: Sequence[Answered],
    cells: Callable[[Sequence[Answered]], list[str]],
) -> Table:
    table = _empty(headings)
    for one in answered:
        table.add_row(one.title, *cells([one]))
    table.add_row("all", *cells(answered), style="bold")
    return table


def _empty(headings: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=True)
    for number, heading in enumerate(headings):
        side: JustifyMethod = "right" if number else "left"
        table.add_column(heading, justify=side, no_wrap=True)
    return table


def decoding(measured: Sequence[Measured]) -> float:
    """Tokens per second after the first."""
    spent = sum(one.total_s - one.first_token_s for one in measured)
    return sum(one.later_tokens for one in measured) / max(1e-9, spent)


def whole(measured: Sequence[Measured]) -> float:
    """Tokens per second, prompts included."""
    return sum(one.tokens for one in measured) / max(1e-9, sum(one.total_s for one in measured))


def _first_tokens(answered: Sequence[Answered]) -> list[str]:
    ways = ([getattr(one, way) for one in answered] for way in ("drafted", "plain", "plain_all"))
    return [f"{1e3 * sum(one.first_token_s for one in own) / len(own):.0f}" for own in ways]


def _ratios(answered: Sequence[Answered], speed: Speed) -> list[str]:
    fast, plain, everywhere = _speeds(answered, speed)
    others = (f"{one:.1f} {fast / max(1e-9, one):.2f}×" for one in (plain, everywhere))
    return [f"{fast:.1f}", *others]


def _drafts(answered: Sequence[Answered]) -> list[str]:
    drafted = [one.drafted for one in answered]
    speculation = [one.complete.speculation for one in drafted]
    proposed = sum(one.num_draft_tokens for one in speculation)
    accepted = sum(one.num_accepted_draft_tokens for one in speculation)
    tokens = sum(one.tokens for one in drafted)
    forwards = sum(one.tokens / one.block_efficiency for one in drafted if one.block_efficiency)
    return [
        f"{tokens / forwards:.2f}" if forwards else "-",
        f"{accepted / proposed:.0%}" if proposed else "-",
        "yes" if all(one.same for one in answered) else "no",
    ]


def _speeds(answered: Sequence[Answered], speed: Speed) -> tuple[float, float, float]:
    """With drafts, plain on the verifier's cores, plain on all."""
    return (
        speed([one.drafted for one in answered]),
        speed([one.plain for one in answered]),
        speed([one.plain_all for one in answered]),
    )


def verdict(answered: Sequence[Answered]) -> str:
    """Which way of using the cores decoded fastest in this run, and why."""
    fast, plain, everywhere = _speeds(answered, decoding)
    gain, spread = fast / plain, everywhere / plain
    reason = (
        f"as drafter and verifier the cores gave {gain:.2f} times the speed of plain decoding "
        f"on the verifier's, and all together in plain decoding {spread:.2f} times"
    )
    if fast >= max(plain, everywhere):
        return f"Decoding was fastest here with Paceline; {reason}."
    if everywhere >= plain:
        return f"Decoding was fastest here plain, on all cores; {reason}."
    return (
        f"Decoding was fastest here plain, on the verifier's cores; {reason}: drafts did not pay."
    )
