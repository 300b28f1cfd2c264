"""Accepted tokens per block, by rule, on real texts: no services, no clock.

    python -m research.acceptance --draft DIR

The target answers real prompts. At many places of its answers the draft model drafts
chains, and the target's laws along them tell what each rule accepts (research.accepted_lengths).
Tokens per round follow for two ways of pacing: `alone`, every block ends in one token
of the target's own; `chained`, the next block is on its way, so that a standard or
block verification that accepts all adds none.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from bench.prompts import SPEC_BENCH, load_prompts
from bench.tokens import asked, source_folder
from research.accepted_lengths import RULES, Pair, Study, Survival, answers
from research.command import measuring_parser, run
from services.engine.native import Engine, ModelSpec, pin


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Accepted tokens per block of 1..k, by rule."""
    pin(arguments.threads)
    study = Study(arguments.temperature, arguments.length, chains=arguments.chains)
    target = Engine.load(ModelSpec(arguments.model, arguments.dtype))
    draft = Engine.load(ModelSpec(arguments.draft, arguments.dtype))
    pair = Pair(target, draft, study)
    texts = answers(target, _prompts(arguments), arguments.tokens)
    each = []
    for number, text in enumerate(texts, 1):
        each.append(pair.survival(text))
        print(f"prompt {number}: {_so_far(each)}", flush=True)
    return {
        "model": arguments.model,
        "draft": str(arguments.draft),
        "temperature": study.temperature,
        "prompts": len(each),
        "chains_per_place": study.chains,
        "by_length": [_of_length(each, length) for length in range(1, study.length + 1)],
    }


def _prompts(arguments: argparse.Namespace) -> list[list[int]]:
    from transformers import AutoTokenizer

    source = source_folder(arguments.model)
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    prompts = load_prompts(SPEC_BENCH, arguments.prompts)
    return [asked(tokenizer, one.text) for one in prompts]


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
    row["chained"] = {
        rule: fmean(chained(rule, one[rule][:length]) for one in each) for rule in RULES
    }
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
    lines = ["  k" + "".join(name.rjust(20) for name in names)]
    for row in rows:
        cells = ("{mean:.3f} ± {error:.3f}".format(**row[name]).rjust(20) for name in names)
        lines.append(f"{row['length']:>3}" + "".join(cells))
    lines += ["", "  k" + "".join(f"{rule}, alone/chained".rjust(28) for rule in RULES)]
    for row in rows:
        pairs = ((1 + row[rule]["mean"], row["chained"][rule]) for rule in RULES)
        lines.append(
            f"{row['length']:>3}" + "".join(f"{a:.3f}/{b:.3f}".rjust(28) for a, b in pairs)
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__)
    made.add_argument("--draft", required=True, help="the draft model")
    made.add_argument("--model", default="smollm2-135m-instruct", help="the target")
    made.add_argument("--dtype", default="float32")
    made.add_argument("--temperature", type=float, default=1.0)
    made.add_argument("--length", type=int, default=8, help="draft tokens of a block")
    made.add_argument("--chains", type=int, default=4, help="drafts at each place, of each kind")
    made.add_argument("--prompts", type=int, default=24)
    made.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    return made


def main() -> None:
    """Measure and print."""
    run(parser().parse_args(), measure, show)


if __name__ == "__main__":
    main()
