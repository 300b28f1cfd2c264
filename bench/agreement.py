"""How often a draft model agrees with its target, on real prompts: no services, no clock.

    python -m bench.agreement --draft DIR

The target answers prompts of Spec-Bench (Xia et al., 2401.07851). Beside its distributions p
stand the draft's distributions q after the same texts:

- acceptance: mean of sum(min(p, q)) at temperature 1, over answers drawn at 1: the
  chance that a drafted token is accepted (Leviathan et al., 2211.17192). Of p the 64
  most likely tokens count, so it is a lower bound, by a little;
- greedy agreement: how often both have the same most likely token, over answers that
  were decoded greedily.

Both models run as they do when they serve. DIR may hold an EAGLE-3 head, too:
then the figures are those of all its draft steps together, and of each. The first step sees the
target's states, the others the head's own features; the tokens before were drafted right. The
head computes in float32.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.command import measuring_parser, run, table
from bench.prompts import SPEC_BENCH, BenchPrompt, load_prompts
from services.engine.checkpoint.files import locate
from services.engine.checkpoint.heads import is_head
from services.engine.checkpoint.stored import embeddings_of
from services.engine.native import NativeEngine
from services.engine.native.dialogue import dialogue_of, tokenizer_of
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from services.engine.threads import pin
from services.training.head.learner import EagleLearner
from services.training.head.states import states_of
from services.training.head.stored import read_head
from services.training.learning import Score, score_of
from services.training.texts import Text
from services.training.writing import Writer, WritingPlan

_BATCH = 16
#: Draft steps of a head that are measured.
_STEPS = 3


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Acceptance and greedy agreement over all prompts, and by category."""
    pin(arguments.threads)
    prompts = chosen(arguments.prompts)
    target = NativeEngine.load(ModelSpec(arguments.model, arguments.dtype))
    drawn = answers(target, prompts, temperature=1.0, tokens=arguments.tokens)
    best = answers(target, prompts, temperature=0.0, tokens=arguments.tokens)
    if is_head(arguments.draft):
        return measured_head(locate(arguments.draft), target, prompts, drawn, best)
    draft = NativeEngine.load(ModelSpec(arguments.draft, arguments.dtype))
    return _report(prompts, drawn, scores(draft, drawn), scores(draft, best))


def _report(
    prompts: Sequence[BenchPrompt],
    drawn: Sequence[Text],
    sampled: Sequence[Score],
    greedy: Sequence[Score],
) -> dict[str, Any]:
    return {
        "positions": sum(len(text.prefixes) for text in drawn),
        "acceptance": by_category(prompts, sampled, "acceptance"),
        "greedy": by_category(prompts, greedy, "greedy"),
    }


def measured_head(
    folder: Path,
    target: NativeEngine,
    prompts: Sequence[BenchPrompt],
    drawn: Sequence[Text],
    best: Sequence[Text],
) -> dict[str, Any]:
    """The same for a head; and acceptance and greedy agreement of each draft step."""
    sampled, greedy = head_scores(folder, target, drawn), head_scores(folder, target, best)
    report = _report(prompts, drawn, _sums(sampled), _sums(greedy))
    steps = list(zip(*sampled, strict=True)), list(zip(*greedy, strict=True))
    report["steps"] = {
        "acceptance": [sum(each, Score()).acceptance for each in steps[0]],
        "greedy": [sum(each, Score()).greedy for each in steps[1]],
    }
    return report


def _sums(each: Sequence[Sequence[Score]]) -> list[Score]:
    return [sum(steps, Score()) for steps in each]


def head_scores(folder: Path, target: NativeEngine, texts: Sequence[Text]) -> list[list[Score]]:
    """A head's score on each text, by draft step."""
    head, ids = read_head(folder)
    kept: dict[int, Tensor] = {}
    embeddings = embeddings_of(target.model).float()
    learner = EagleLearner(
        head, ids, embeddings, lambda number, count: kept[number][:count], (1.0,) * _STEPS
    )
    target.watch(head.shape.layers)
    each: list[list[Score]] = []
    for text, states in states_of(target, texts):
        kept = {text.number: states}
        each.append(learner.scores([text]))
    return each


def chosen(count: int) -> list[BenchPrompt]:
    """Prompts from all over the set, so that each category has its share."""
    every = load_prompts(SPEC_BENCH, len(SPEC_BENCH.read_text().splitlines()))
    every.sort(key=lambda prompt: prompt.question_id)
    return every[:: max(1, len(every) // count)][:count]


def answers(
    target: NativeEngine, prompts: Sequence[BenchPrompt], *, temperature: float, tokens: int
) -> list[Text]:
    """What the target answers to each, with its distributions."""
    assert target.bundle is not None
    tokenizer = tokenizer_of(target.bundle)
    words = [tokenizer.encode(prompt.text, add_special_tokens=False) for prompt in prompts]
    plan = WritingPlan(
        dialogue_of(tokenizer), 0, words, temperatures=(temperature,), answer_tokens=tokens
    )
    written = Writer(target, plan, _BATCH).write(iter(range(len(words))))
    return sorted(chain.from_iterable(done for done, _ in written), key=lambda text: text.number)


def scores(draft: NativeEngine, texts: Sequence[Text]) -> list[Score]:
    """The draft's score on each text."""
    return [_score(draft, text) for text in texts]


def _score(draft: NativeEngine, text: Text) -> Score:
    start = int(text.prefixes[0]) - 1
    tokens = text.token_ids[: text.prefixes[-1]].tolist()
    cache = draft.new_cache(len(tokens))
    [logits] = draft.forward([Segment(cache, tokens, logits_from=start)])
    cache.free()
    rows = torch.from_numpy(text.prefixes).long() - 1 - start
    ids, p = torch.from_numpy(text.law_ids).long(), torch.from_numpy(text.law_logs).float().exp()
    return score_of(logits[rows], ids, p, ids[:, 0])


def by_category(
    prompts: Sequence[BenchPrompt], each: Sequence[Score], figure: str
) -> dict[str, float]:
    """One figure of the scores, of every category and of all together."""
    sums: dict[str, Score] = defaultdict(Score)
    for prompt, score in zip(prompts, each, strict=True):
        sums[prompt.category] += score
        sums["all"] += score
    return {name: getattr(score, figure) for name, score in sorted(sums.items())}


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    rows = [
        {"category": name, "acceptance": acceptance, "greedy": report["greedy"][name]}
        for name, acceptance in report["acceptance"].items()
    ]
    steps = report.get("steps", {"acceptance": (), "greedy": ()})
    rows += [
        {"category": f"step {step}", "acceptance": acceptance, "greedy": greedy}
        for step, (acceptance, greedy) in enumerate(
            zip(steps["acceptance"], steps["greedy"], strict=True), 1
        )
    ]
    return table({"category": "", "acceptance": ".3f", "greedy": ".3f"}, rows)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return measuring_parser(__doc__, draft=None, dtype="bfloat16", prompts=60, tokens=96)


if __name__ == "__main__":
    run(parser(), measure, show)
