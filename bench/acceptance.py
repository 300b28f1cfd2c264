"""Accepted tokens per block, by rule, on real texts: no services, no clock.

    python -m bench.acceptance --draft DIR

The target answers real prompts. At many places of its answers the draft model drafts chains,
and the target's distributions along them show what each rule accepts
(bench.accepted_lengths). Tokens per round follow for two ways of pacing: `alone`, every
block ends in a token of the target's own; `chained`, the next block is under way, so that a
standard or block verification that accepts all adds none.
"""

import argparse
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from bench.accepted_lengths import RULES, Pair, Study, Survival
from bench.agreement import answers
from bench.command import measuring_parser, run, table
from bench.prompts import SPEC_BENCH, load_prompts
from services.engine.native import NativeEngine
from services.engine.spec import ModelSpec
from services.engine.threads import pin


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Accepted tokens per block of 1..k, by rule."""
    pin(arguments.threads)
    study = Study(arguments.temperature, arguments.length, chains=arguments.chains)
    target = NativeEngine.load(ModelSpec(arguments.model, arguments.dtype))
    draft = NativeEngine.load(ModelSpec(arguments.draft, arguments.dtype))
    pair = Pair(target, draft, study)
    prompts = load_prompts(SPEC_BENCH, arguments.prompts)
    texts = answers(target, prompts, temperature=1.0, tokens=arguments.tokens)
    each = []
    answered = (text for text in texts if len(text.token_ids) > text.prefixes[0])
    for number, text in enumerate(answered, 1):
        each.append(pair.survival(text))
        print(f"prompt {number}: {_so_far(each)}", flush=True)
    return {"by_length": [_of_length(each, length) for length in range(1, study.length + 1)]}


def _so_far(each: Sequence[Survival]) -> str:
    means = {rule: fmean(sum(one[rule]) for one in each) for rule in RULES}
    return ", ".join(f"{rule} {mean:.3f}" for rule, mean in means.items())


def _of_length(each: Sequence[Survival], length: int) -> dict[str, Any]:
    accepted = {rule: [sum(one[rule][:length]) for one in each] for rule in RULES}
    row: dict[str, Any] = {"length": length}
    row |= {rule: _estimate(values) for rule, values in accepted.items()}
    for rule in RULES[1:]:
        pairs = zip(accepted[rule], accepted["standard"], strict=True)
        row[f"{rule} - standard"] = _estimate([a - b for a, b in pairs])
    row["chained"] = {rule: fmean(chained(rule, e[rule][:length]) for e in each) for rule in RULES}
    return row


def chained(rule: str, survival: Sequence[float]) -> float:
    """Tokens per round of chained blocks, of the chances that 1..k tokens are accepted."""
    whole = 0.0 if rule == "coupled" else survival[-1]
    return sum(survival) + 1.0 - whole


def _estimate(values: Sequence[float]) -> dict[str, float]:
    """Mean over prompts and its standard error; needs two."""
    return {"mean": fmean(values), "error": stdev(values) / len(values) ** 0.5}


def show(report: dict[str, Any]) -> str:
    """The report as two tables: accepted tokens, mean ± standard error over the prompts."""
    rows = report["by_length"]
    names = [name for name in rows[0] if name not in ("length", "chained")]
    accepted, per_round = [], []
    for row in rows:
        k = {"k": row["length"]}
        cells = {name: "{mean:.3f} ± {error:.3f}".format(**row[name]) for name in names}
        pairs = {rule: (1 + row[rule]["mean"], row["chained"][rule]) for rule in RULES}
        accepted.append(k | cells)
        per_round.append(k | {rule: "{:.3f}/{:.3f}".format(*pairs[rule]) for rule in RULES})
    tables = (table(dict.fromkeys(one[0], ""), one) for one in (accepted, per_round))
    return "\n\nalone/chained\n".join(tables)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__, draft=None, dtype="float32", prompts=24, tokens=64)
    made.add_argument("--temperature", type=float, default=1.0)
    made.add_argument("--length", type=int, default=8, help="draft tokens of a block")
    made.add_argument("--chains", type=int, default=4, help="drafts at each place, of each kind")
    return made


if __name__ == "__main__":
    run(parser(), measure, show)
