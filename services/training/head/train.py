"""`paceline train head`: texts, the target's states, a beginning, training, the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from services.contract.errors import StartError
from services.engine import number_formats
from services.engine.limits import check_layers
from services.engine.native.loading import read_folder
from services.engine.native.stack import stack_path
from services.engine.spec import ModelSpec
from services.runtime.atomic_file import replacing
from services.training.card import (
    folder_of,
    listed,
    page,
    plot_curve,
    rounded,
    step_figures,
    taught,
)
from services.training.checks import LOGIT_BYTES, Job, Needs, check
from services.training.head.beginning import begin, sample
from services.training.head.head import EagleHead, HeadShape, default_layers, fresh_head, shape_of
from services.training.head.learner import EagleLearner
from services.training.head.states import (
    PASS_TOKENS,
    STATE_BYTES,
    StateStore,
    compute_states,
    missing_states,
)
from services.training.head.stored import as_stored, save_head
from services.training.head.vocabulary import Vocabulary, frequent
from services.training.material import divide, engine_of, written
from services.training.options import HeadOptions
from services.training.reporting import Reporter
from services.training.target import Target, supported
from services.training.texts import Text, shards
from services.training.trainer import TrainingPlan, beginning_of

MOST_STEPS = 8
#: Tokens of the texts that the beginning is fitted to.
FITTED_TOKENS = 30_000
_BEGINNING = "beginning.safetensors"
#: Weights, gradients and two moments of AdamW in float32; a checkpoint has no gradients.
_TRAINED_BYTES, _CHECKPOINT_BYTES = 16, 12


def train_head(options: HeadOptions, reporter: Reporter) -> Path:
    """Make an EAGLE-3 head; returns its folder.

    Raises StartError before any work for options that cannot be carried out.
    What `reporter` raises ends the run; the same options go on with it.
    """
    job = check_head(options, reporter)
    material = divide(job, written(job, reporter))
    job.work.make(job.plan)
    _keep_states(job, _layers(options, job.target), reporter)
    eos, size = job.target.bundle.eos_token_ids, job.target.vocab_size
    known = frequent(material.train, size, options.head_tokens, eos)
    reporter.say(f"head: {len(known.ids)} tokens, {known.mass:.1%} of the target's probability")
    learner = _learner(job, options, known, material.train, reporter)
    plan = TrainingPlan(
        options.positions,
        options.batch_positions,
        options.learning_rate,
        warmup_steps=100,
        seed=options.seed,
    )
    card = taught(
        job,
        learner,
        lambda: learner.exactly(as_stored(learner.head, options.storage)),
        plan,
        material,
        reporter,
    )
    _publish(job, options, learner.head, known, card | _about(job, options, learner.head, known))
    return options.out


def check_head(options: HeadOptions, reporter: Reporter) -> Job:
    """The job that the options describe; StartError, one line, for what cannot be done."""
    weights = options.step_weights
    if not 1 <= len(weights) <= MOST_STEPS or not all(0 < weight < 100 for weight in weights):
        raise StartError(f"--step-weights: needed are 1 to {MOST_STEPS} numbers above 0")
    if not 0 < options.learning_rate < 1:
        raise StartError(
            f"--learning-rate: {options.learning_rate} is not allowed; allowed is 0 to 1"
        )
    return check(options, options.positions, lambda target: needs_of(options, target), reporter)


def needs_of(options: HeadOptions, target: Target) -> Needs:
    """What a head needs beside its texts; StartError for a target that none can be made for."""
    layers = _layers(options, target)
    check_layers(layers, target.layers, target.name)
    least = len(set(target.bundle.eos_token_ids)) + 1
    if not least <= options.head_tokens <= target.vocab_size:
        raise StartError(
            f"--head-tokens: {options.head_tokens} is not allowed; the target's vocabulary "
            f"allows {least}..{target.vocab_size}"
        )
    shape = shape_of(target.config, layers, options.head_tokens)
    own = _own_parameters(target, shape)
    # A text has at most as many tokens for each distribution as its longest prompt and answer.
    whole = options.prompt_tokens + options.answer_tokens
    tokens = -(-options.write * whole // options.answer_tokens)
    logits = options.batch_positions * options.head_tokens * LOGIT_BYTES
    deciding = ("head_tokens", "step_weights", "learning_rate", "batch_positions")
    return Needs(
        {
            "layers": layers,
            "train": options.positions,
            **{name: getattr(options, name) for name in deciding},
        },
        memory=own * _TRAINED_BYTES + len(options.step_weights) * logits,
        disk=tokens * shape.state_width * STATE_BYTES + 2 * own * _CHECKPOINT_BYTES,
    )


def _layers(options: HeadOptions, target: Target) -> tuple[int, ...]:
    return options.layers or default_layers(target.layers)


def _own_parameters(target: Target, shape: HeadShape) -> int:
    """How many parameters a head has; StartError unless the target's ends fit it."""
    from transformers import AutoModelForCausalLM

    with supported(target.name), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(target.config, trust_remote_code=False)
        ends = model.get_input_embeddings(), model.get_output_embeddings()
        widths = [end.weight.shape[-1] for end in ends if isinstance(end, nn.Embedding | nn.Linear)]
        if widths != [shape.width] * 2:
            kind = type(model).__name__
            raise StartError(f"{kind}: its embeddings are not as wide as its states")
        stack_path(model)
        return _count(EagleHead(shape))


def _count(head: EagleHead) -> int:
    return sum(parameter.numel() for parameter in head.parameters())


def _keep_states(job: Job, layers: Sequence[int], reporter: Reporter) -> None:
    """Compute the states of all texts that have none yet."""
    missing = missing_states(job.work.texts, layers)
    if not missing:
        return
    reporter.say(f"loading {job.target.name} in {job.options.dtype} on {job.device.type}")
    engine = engine_of(job, PASS_TOKENS + job.target.context)
    count = len(shards(job.work.texts))
    reporter.stage("states of the target, files", count, count - len(missing))
    for place, shard in enumerate(missing, count - len(missing) + 1):
        compute_states(engine, layers, shard)
        reporter.advance(place)


def _learner(
    job: Job, options: HeadOptions, known: Vocabulary, texts: Sequence[Text], reporter: Reporter
) -> EagleLearner:
    """A head at its beginning, fitted now or by an earlier run, beside the target's embeddings."""
    from safetensors.torch import load_file, save_file

    model: Any = read_folder(job.target.folder, ModelSpec(options.target))
    embeddings = model.get_input_embeddings().weight.detach()
    shape = shape_of(job.target.config, _layers(options, job.target), options.head_tokens)
    head = fresh_head(shape, model, known.ids, options.seed)
    fitted = job.work.path / _BEGINNING
    if not fitted.exists():
        reporter.say("fitting what the head begins as")
        engine = engine_of(job, PASS_TOKENS + job.target.context)
        some = beginning_of(texts, FITTED_TOKENS, lambda text: len(text.token_ids))
        begin(head, sample(engine, some, shape.layers, embeddings), options.seed)
        with replacing(fitted) as scratch:
            save_file(dict(head.state_dict()), scratch)
    head.load_state_dict(load_file(fitted))
    return EagleLearner(
        head.to(job.device),
        known.ids,
        embeddings.to(job.device),
        StateStore(job.work.texts),
        options.step_weights,
        fast=job.device.type == "cuda" or number_formats.cpu().bfloat16,
    )


def _about(job: Job, options: HeadOptions, head: EagleHead, known: Vocabulary) -> dict[str, Any]:
    return {
        "layers": list(head.shape.layers),
        "target_layers": job.target.layers,
        "parameters": _count(head),
        "storage": options.storage,
        "head_tokens": options.head_tokens,
        "head_mass": rounded(known.mass),
        "step_weights": list(options.step_weights),
    }


def _publish(
    job: Job,
    options: HeadOptions,
    head: EagleHead,
    known: Vocabulary,
    card: dict[str, Any],
) -> None:
    """Write the folder of a trained head."""
    drafted = len(options.step_weights)
    with folder_of(options.out) as scratch:
        for told in ({}, card):  # the card tells the size of what is stored without it
            save_head(
                head,
                known.ids,
                job.target,
                scratch,
                storage=options.storage,
                drafted=drafted,
                card=told,
            )
            card.setdefault("bytes", sum(path.stat().st_size for path in scratch.iterdir()))
        (scratch / "README.md").write_text(readme(card))
        plot_curve(card, scratch / "acceptance.svg")


def readme(card: Mapping[str, Any]) -> str:
    """The card for people, in Markdown."""
    rows = (
        ("states", f"what goes into layers {listed(card['layers'])} of {card['target_layers']}"),
        ("parameters of its own", f"{card['parameters'] / 1e6:.1f} million"),
        ("storage", f"{card['storage']}, {card['bytes'] / 1e6:.1f} MB"),
        (
            "head",
            f"{card['head_tokens']} tokens, {card['head_mass']:.1%} of the target's probability",
        ),
        ("weights of the steps in training", listed(card["step_weights"])),
    )
    title = f"An EAGLE-3 head for {card['target']}"
    return page(card, title, _ABOUT, rows, step_figures(card), "acceptance.svg")


_ABOUT = """One layer that drafts from its target's own states (Li et al., 2503.01840), trained on
texts that the target wrote: it proposes tokens and the target verifies them, so the output
distribution is exactly the target's. It needs that target's states, embeddings and tokenizer. The
layout is that of vLLM's speculators. The first token is drafted from the target's states, the
others from the head's own features."""
