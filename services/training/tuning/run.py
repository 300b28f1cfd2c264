"""A whole search: check, load, read the prompts, measure masks, measure the best again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.contract.errors import StartError
from services.engine.native import NativeEngine
from services.engine.native.dialogue import dialogue_of, tokenizer_of
from services.engine.skip_mask import SkipMask
from services.engine.skip_mask_file import MaskFile, write_mask
from services.engine.spec import ModelSpec
from services.engine.threads import pin
from services.training.reporting import Reporter
from services.training.tuning.checks import Job, check
from services.training.tuning.figures import MaskStats, total
from services.training.tuning.options import TuneOptions
from services.training.tuning.plot import plot_search
from services.training.tuning.search import Search, Trial
from services.training.tuning.speculation import Rules, Speculation

_FINALISTS = 4
_FINAL_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Result:
    """The mask that was written, and what it cost when it was measured again."""

    mask: SkipMask
    figures: MaskStats


def tune(options: TuneOptions, reporter: Reporter) -> Result:
    """Search a mask and write its file and picture.

    Raises StartError before any work for options that cannot be carried out. What
    `reporter` raises ends the run; the same options go on with it.
    """
    reporter.say(f"checking {options.target} and the options")
    job = check(options)
    pin(options.threads, options.cpus)
    reporter.say(f"loading {options.target} in {options.dtype} on {options.device}")
    engine = _load(options)
    engine.require_skipping()
    speculation = Speculation(engine, _prompts(job, engine), _rules(options))
    search = Search(engine.num_layers, options.seed, job.plan, options.journal_file)
    _search(search, speculation, options, reporter)
    result = _finals(search.best(_FINALISTS), speculation, reporter)
    _publish(job, engine, search.trials, result)
    return result


def _load(options: TuneOptions) -> NativeEngine:
    rules = _rules(options)
    # Two caches a prompt, and one token to size them.
    tokens = 2 * options.num_prompts * (options.prompt_tokens + rules.reserve) + 1
    return NativeEngine.load(
        ModelSpec(
            options.target,
            dtype=options.dtype,
            device=options.device,
            threads=options.threads,
            kv_capacity_tokens=tokens,
        )
    )


def _rules(options: TuneOptions) -> Rules:
    return Rules(options.tokens, options.max_draft, options.threshold, options.placement)


def _prompts(job: Job, engine: NativeEngine) -> list[list[int]]:
    """Token ids of the prompts as a chat has them, cut to the longest allowed.

    Raises StartError where the model's context has no room for them.
    """
    longest = engine.max_context_length - _rules(job.options).reserve
    if engine.bundle is None or longest < job.options.prompt_tokens:
        raise StartError(
            f"--prompt-tokens: {job.options.prompt_tokens} leave no room for an answer in the "
            f"target's context of {engine.max_context_length} tokens"
        )
    tokenizer = tokenizer_of(engine.bundle)
    dialogue = dialogue_of(tokenizer)
    room = job.options.prompt_tokens - len(dialogue.prompt([]))
    if room < 1:
        raise StartError(f"--prompt-tokens: the target's chat template takes {1 - room} more")
    words = (tokenizer.encode(text, add_special_tokens=False)[:room] for text in job.prompts)
    return [dialogue.prompt(ids) for ids in words]


def _search(
    search: Search, speculation: Speculation, options: TuneOptions, reporter: Reporter
) -> None:
    before = len(search.trials)
    reporter.stage("searching", options.trials, min(before, options.trials))
    for done, _ in enumerate(search.run(options.trials, speculation.measure), before + 1):
        reporter.advance(done, _told(search.trials))


def _told(trials: Sequence[Trial]) -> str:
    best = min(trials, key=lambda trial: trial.figures.cost)
    return f"best {1 / best.figures.cost:.2f}x plain, {best.mask.share:.0%} skipped"


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


def _publish(job: Job, engine: NativeEngine, trials: Sequence[Trial], result: Result) -> None:
    options = job.options
    measured = {
        **result.figures.described(),
        "placement": options.placement,
        "threshold": options.threshold,
        "max_draft": options.max_draft,
        "dtype": options.dtype,
        "device": options.device,
        "threads": options.threads,
        "prompts": len(job.prompts),
        "tokens_per_prompt": options.tokens,
        "trials": len(trials),
        "seed": options.seed,
        "command": options.command,
    }
    plot_search(trials, options.plot_file)
    write_mask(options.out, MaskFile(result.mask, engine.model_id, job.weights, measured))
