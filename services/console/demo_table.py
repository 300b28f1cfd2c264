"""What the demo measured, as one table and one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from services.cluster.figures import Measured
from services.contract.texts import common_prefix

HEADINGS = (
    "decoding, tokens/s",
    "with drafts",
    "without",
    "gain",
    "first token, ms",
    "tokens a step",
)
LEGEND = (
    "decoding: tokens/s after the first token; the model had every core without drafts. "
    "first token: with drafts, without. tokens a step: what a forward of the model brought; "
    "without drafts 1. drafts kept from the target's texts: what follows one to four tokens in "
    "texts that it wrote; from single tokens: what it says after one. No answer found anything of "
    "those before it: no cached prompt, no phrase of another text."
)

Runs = Sequence[Measured]


@dataclass(frozen=True, slots=True)
class Answered:
    """The runs of one prompt, with drafts and by plain decoding."""

    title: str
    drafted: Runs
    plain: Runs

    def __str__(self) -> str:
        """The medians in one line, and whether drafts changed a token."""
        fast, slow = decoding([self.drafted]), decoding([self.plain])
        drafted, plain = self.drafted[0].token_ids, self.plain[0].token_ids
        other = f"other tokens from token {common_prefix(drafted, plain)} on (a near-tie)"
        return (
            f"medians of {len(self.drafted)} runs: {fast:.1f} tokens/s with drafts, {slow:.1f} "
            f"without; {'the same tokens' if drafted == plain else other}"
        )


def table(answered: Sequence[Answered]) -> Table:
    """One line per prompt, and one for all."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(HEADINGS):
        made.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for one in answered:
        made.add_row(one.title, *_cells([one]))
    made.add_row("all", *_cells(answered), style="bold")
    return made


def verdict(answered: Sequence[Answered]) -> str:
    """What to remember of it."""
    every, gains = gain(answered), [gain([one]) for one in answered]
    paid = "" if every >= 1 else ": drafts did not pay"
    return (
        f"On this machine Paceline wrote {every:.2f} times as fast as the same model without "
        f"drafts ({min(gains):.2f} to {max(gains):.2f} by prompt){paid}."
    )


def gain(answered: Sequence[Answered]) -> float:
    """How many times as fast decoding was with drafts (below 1: slower)."""
    fast, slow = ([one.drafted for one in answered], [one.plain for one in answered])
    return decoding(fast) / max(1e-9, decoding(slow))


def decoding(prompts: Sequence[Runs]) -> float:
    """Tokens/s after the first, at each prompt's median: all tokens over all the time."""
    tokens = [runs[0].later_tokens for runs in prompts]
    rates = [median(run.decode_rate for run in runs) for runs in prompts]
    spent = sum(count / max(1e-9, rate) for count, rate in zip(tokens, rates, strict=True))
    return sum(tokens) / max(1e-9, spent)


def _cells(answered: Sequence[Answered]) -> list[str]:
    drafted, plain = ([one.drafted for one in answered], [one.plain for one in answered])
    return [
        f"{decoding(drafted):.1f}",
        f"{decoding(plain):.1f}",
        f"{gain(answered):.2f}×",
        f"{_first_token_ms(drafted):.0f}, {_first_token_ms(plain):.0f}",
        _tokens_a_step([one.drafted[0] for one in answered]),
    ]


def _first_token_ms(prompts: Sequence[Runs]) -> float:
    """Until the first token; of several prompts the mean of their medians."""
    medians = [median(run.first_token_s for run in runs) for runs in prompts]
    return 1e3 * sum(medians) / len(medians)


def _tokens_a_step(drafted: Runs) -> str:
    forwards = sum(one.tokens / one.block_efficiency for one in drafted if one.block_efficiency)
    return f"{sum(one.tokens for one in drafted) / forwards:.2f}" if forwards else "-"
