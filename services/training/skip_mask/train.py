"""`paceline train skip-mask`: check, load, read the prompts, measure masks, the best again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.engine.checkpoint.files import weights_digest
from services.engine.native import NativeEngine
from services.engine.native.dialogue import dialogue_of, tokenizer_of
from services.engine.skip_mask import SkipMask
from services.engine.skip_mask_file import MaskFile, write_mask
from services.engine.spec import ModelSpec
from services.engine.threads import pin
from services.training.checks import check_place
from services.training.options import SkipMaskOptions
from services.training.prompts import read_prompts
from services.training.reporting import Reporter
from services.training.skip_mask.figures import MaskStats, total
from services.training.skip_mask.search import Search, Trial, best_so_far, require_plan
from services.training.skip_mask.speculation import Rules, Speculation
from services.training.svg import drawing
from services.training.work import digest

PROMPTS = (
    "Explain to a ten-year-old why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Summarize the main causes of the French Revolution in five sentences.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "Give me a recipe for a vegetable soup, with quantities and steps.",
    "What are the advantages and disadvantages of working from home?",
    "Translate into French, then explain the grammar: The train leaves at noon tomorrow.",
    "A farmer has 17 sheep and buys three times as many. How many has he now? Think aloud.",
)
"""What a target is asked where no prompts are given: several kinds of text."""
#: Options that decide what a trial measures. The others change how many there are.
_TRIAL = ("prompt_tokens", "max_draft", "threshold", "placement", "dtype", "device", "seed")
_DECIDING = ("num_prompts", "tokens", *_TRIAL)
_FINALISTS = 4
_FINAL_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Result:
    """The mask that was written, and what it cost when it was measured again."""

    mask: SkipMask
    figures: MaskStats


def train_skip_mask(options: SkipMaskOptions, reporter: Reporter) -> Result:
    """Search a mask and write its file and picture.

    Raises StartError before any work for options that cannot be carried out. What
    `reporter` raises ends the run; the same options go on with it.
    """
    reporter.say(f"checking {options.target} and the options")
    pin(options.threads, options.cpus)
    _check_places(options)
    texts = _texts(options)
    weights = weights_digest(options.target)
    plan = _plan(options, texts, weights)
    require_plan(options.journal_file, plan)
    reporter.say(f"loading {options.target} in {options.dtype} on {options.device}")
    engine = _load(options)
    engine.require_skipping()
    speculation = Speculation(engine, _prompts(options, texts, engine), _rules(options))
    search = Search(engine.num_layers, options.seed, plan, options.journal_file)
    _search(search, speculation, options, reporter)
    result = _finals(search.best(_FINALISTS), speculation, reporter)
    measured = {
        **result.figures.described(),
        **{name: getattr(options, name) for name in (*_TRIAL, "threads", "command")},
        "prompts": len(texts),
        "tokens_per_prompt": options.tokens,
        "trials": len(search.trials),
    }
    _plot(search.trials, options.out.with_suffix(".svg"))
    write_mask(options.out, MaskFile(result.mask, engine.model_id, weights, measured))
    return result


def _check_places(options: SkipMaskOptions) -> None:
    check_place(options.out)
    for option, path in (("--out", options.out), ("--journal", options.journal_file)):
        folder = path.absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise StartError(f"{option}: {folder} is no folder that can be written")


def _texts(options: SkipMaskOptions) -> tuple[str, ...]:
    if options.prompts is None:
        return PROMPTS[: options.num_prompts]
    found = read_prompts(options.prompts)
    return tuple(prompt.text for prompt in found[: options.num_prompts])


def _plan(options: SkipMaskOptions, texts: Sequence[str], weights: str) -> Mapping[str, Any]:
    """What decides what is measured."""
    content = digest([json.dumps(texts).encode()])
    known = {"weights of the target": weights[:16], "content of the prompts": content}
    return {name: getattr(options, name) for name in _DECIDING} | known


def _load(options: SkipMaskOptions) -> NativeEngine:
    # Two caches a prompt, and one token to size them.
    tokens = 2 * options.num_prompts * (options.prompt_tokens + _rules(options).reserve) + 1
    return NativeEngine.load(
        ModelSpec(
            options.target,
            dtype=options.dtype,
            device=options.device,
            threads=options.threads,
            kv_capacity_tokens=tokens,
        )
    )


def _rules(options: SkipMaskOptions) -> Rules:
    return Rules(options.tokens, options.max_draft, options.threshold, options.placement)


def _prompts(
    options: SkipMaskOptions, texts: Sequence[str], engine: NativeEngine
) -> list[list[int]]:
    """Token ids of the prompts as a chat has them, cut to the longest allowed.

    Raises StartError where the model's context has no room for them.
    """
    longest = engine.max_context_length - _rules(options).reserve
    if engine.bundle is None or longest < options.prompt_tokens:
        raise StartError(
            f"--prompt-tokens: {options.prompt_tokens} leave no room for an answer in the "
            f"target's context of {engine.max_context_length} tokens"
        )
    tokenizer = tokenizer_of(engine.bundle)
    dialogue = dialogue_of(tokenizer)
    room = options.prompt_tokens - len(dialogue.prompt([]))
    if room < 1:
        raise StartError(f"--prompt-tokens: the target's chat template takes {1 - room} more")
    words = (tokenizer.encode(text, add_special_tokens=False)[:room] for text in texts)
    return [dialogue.prompt(ids) for ids in words]


def _search(
    search: Search, speculation: Speculation, options: SkipMaskOptions, reporter: Reporter
) -> None:
    before = len(search.trials)
    reporter.stage("searching", options.trials, min(before, options.trials))
    for done, _ in enumerate(search.run(options.trials, speculation.measure), before + 1):
        best = min(search.trials, key=lambda trial: trial.figures.cost)
        told = f"best {1 / best.figures.cost:.2f}x plain, {best.mask.share:.0%} skipped"
        reporter.advance(done, told)


def _finals(masks: Sequence[SkipMask], speculation: Speculation, reporter: Reporter) -> Result:
    """The best of the finalists, measured again in turns: a search picks lucky ones too."""
    reporter.stage("measuring the best again", _FINAL_REPEATS * len(masks), 0)
    figures: dict[SkipMask, list[MaskStats]] = {mask: [] for mask in masks}
    for turn in range(_FINAL_REPEATS):
        for place, mask in enumerate(masks, 1):
            figures[mask].append(speculation.measure(mask))
            reporter.advance(turn * len(masks) + place)
    results = [Result(mask, total(measured)) for mask, measured in figures.items()]
    return min(results, key=lambda result: result.figures.cost)


def _plot(trials: Sequence[Trial], path: Path) -> None:
    """Draw the costs as SVG, darker the more is skipped; the dotted line is plain decoding."""
    numbers = range(1, len(trials) + 1)
    costs = [trial.figures.cost for trial in trials]
    shares = [trial.mask.share for trial in trials]
    with drawing(path) as (figure, axes):
        dots = axes.scatter(numbers, costs, c=shares, cmap="viridis_r", vmin=0, vmax=1, s=12)
        axes.step(numbers, best_so_far(costs), where="post", color="#d62728", label="best so far")
        axes.axhline(1.0, linestyle=":", color="#555555", label="plain decoding")
        axes.set(xlabel="masks measured", ylabel="time per verified token, plain = 1")
        axes.set_ylim(0, None)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.colorbar(dots, label="share of sub-layers skipped")
