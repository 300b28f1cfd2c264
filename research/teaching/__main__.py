"""See `research.teaching`."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from research.command import say
from research.teaching import __doc__ as description
from research.teaching.pool import Pool
from research.teaching.target import Target
from research.teaching.training import Trainee, judged, train
from research.teaching.writing import Pen, Plan, Wave
from services.contract.errors import StartError
from services.engine.checkpoint.files import locate
from services.engine.native.loading import read_folder
from services.engine.spec import ModelSpec
from services.training.distill.prompts import overlapping
from services.training.distill.target import Target as Described
from services.training.distill.target import read_target
from services.training.eagle.head import EagleHead
from services.training.eagle.stored import HeadTarget, as_stored, read_head, save_head
from services.training.ngrams.laws import Kept, mean_laws

HELD_EVERY = 40
"""Every fortieth prompt of the file is held out."""
DRAFTED = 3
"""Draft steps that a head learns."""
_LEAST_SEEN = 2
"""Of millions of contexts those that came once are never among those that are worth their bytes."""
_ALIKE = 40
"""Tokens by which lengths of prompts side by side may differ."""


def teach(asked: argparse.Namespace) -> dict[str, Any]:
    """Write, average, train; each part is in the folder as soon as it is there."""
    torch.manual_seed(asked.seed)
    device = torch.device(asked.device)
    # cuDNN plans its attention anew for each shape, and here nearly every step has one of its own.
    torch.backends.cuda.enable_cudnn_sdp(False)
    described = read_target(asked.target)
    beginning = read_head(locate(asked.head))
    if min(asked.inner) < (units := beginning[0].shape.intermediate):
        raise StartError(f"--inner: the head has {units} units, and gets no fewer")
    model: Any = read_folder(described.folder, ModelSpec(asked.target))
    target = Target(model, device, getattr(torch, asked.dtype))
    plan = _plan(described, model, asked)
    excluded = [turn for turns in _spec_bench(asked.exclude) for turn in turns]
    prompts = read_prompts(asked.prompts, described, excluded, plan.room)
    say(f"{len(prompts)} prompts; {len(excluded)} turns that no text may contain")
    asked.out.mkdir(parents=True, exist_ok=True)
    pen = Pen(target, plan, asked.batch, asked.seed)
    pool, held = Pool(), Pool()
    for path in asked.texts:
        pool.add_texts(path, device)
    for wave in _waves(pen, prompts, described, excluded, asked):
        pool.add(wave)
        say(f"{len(pool.ends)} texts, {pool.distributions} distributions")
    pool.save_texts(asked.out / "texts.npz")
    held.add(pen.answers(prompts[::HELD_EVERY][: asked.held]))
    kinds: dict[str, Pool | Wave] = {"held": held, **_judges(pen, described, plan, asked)}
    del pen
    _save_lessons(asked.out / "lessons.npz", held)
    report: dict[str, Any] = {
        "texts": len(pool.ends),
        "distributions": pool.distributions,
        "held_out_distributions": held.distributions,
    }
    if asked.most_bytes and pool.distributions:
        said = pool.contexts, pool.ids, pool.chances
        laws = mean_laws(*said, target.vocab_size, asked.most_bytes, _LEAST_SEEN)
        _save_laws(asked.out / "laws.npz", laws)
        report["contexts"] = [len(law.keys) for law in laws]
        del laws, said
    pool.forget_laws()
    vocabulary = pool.mass, plan.ends
    return report | _taught(target, described, beginning, vocabulary, pool, kinds, asked)


def _taught(
    target: Target,
    described: Described,
    beginning: tuple[EagleHead, Tensor],
    vocabulary: tuple[Tensor, Sequence[int]],
    pool: Pool,
    kinds: Mapping[str, Pool | Wave],
    asked: argparse.Namespace,
) -> dict[str, Any]:
    """Train heads of all widths, and store them whenever they were judged."""
    (head, known), (mass, always) = beginning, vocabulary
    ids = frequent(mass, max(asked.head_tokens, head.shape.tokens), always)
    trainees = [
        Trainee(head.to(target.device), known.to(target.device), ids, target, inner)
        for inner in asked.inner
    ]
    identity = HeadTarget(
        described.name,
        described.weights,
        (described.config.architectures or [""])[0],
        described.vocab_size,
        described.context,
    )

    def keep() -> None:
        for one in trainees:
            folder = asked.out / f"head-{one.inner}"
            save_head(one.head, ids, identity, folder, storage="int8", drafted=DRAFTED, card={})

    report = train(trainees, target, ids, pool, kinds, asked, keep)
    stored = {
        one.inner: judged(as_stored(one.head, "int8"), target, ids, kinds) for one in trainees
    }
    return {"head_mass": float(mass[ids].sum() / mass.sum()), "stored": stored, **report}


def frequent(mass: Tensor, count: int, always: Sequence[int]) -> Tensor:
    """The ids [count] of the tokens with most of the `mass` [V], `always` among them; ascending."""
    rank = mass.clone()
    rank[list(always)] = torch.inf
    return rank.topk(count).indices.sort().values


def _plan(described: Described, model: Any, asked: argparse.Namespace) -> Plan:
    eos = model.generation_config.eos_token_id
    ends = eos if isinstance(eos, list) else [eos]
    return Plan(
        described.dialogue,
        sorted({*ends, *described.dialogue.after[:1]}),
        prompt_tokens=asked.prompt_tokens,
        answer_tokens=asked.answer_tokens,
        room=asked.room,
    )


def _waves(
    pen: Pen,
    prompts: Sequence[Sequence[int]],
    described: Described,
    excluded: Sequence[str],
    asked: argparse.Namespace,
) -> Iterator[Wave]:
    """Waves of answers to the target's own prompts and to those of the file, in turn.

    One of each at least, if any are asked for.
    """
    openings = [described.encode(line) for line in asked.openings.read_text().split("\n")]
    chance, began = random.Random(asked.seed), time.monotonic()
    given = [prompt for place, prompt in enumerate(prompts) if place % HELD_EVERY]
    dealt = _dealt(given, asked.batch, chance)
    for turn in itertools.count():
        if time.monotonic() - began >= asked.writing_s and (turn > 1 or not asked.writing_s):
            return
        if turn % 2 == 0:
            yield allowed(pen.own(openings), described, excluded)
        elif given:
            yield pen.answers(next(dealt))


def _dealt(
    prompts: Sequence[Sequence[int]], size: int, chance: random.Random
) -> Iterator[list[Sequence[int]]]:
    """Groups of prompts of like length, all of them again and again."""
    while prompts:
        order = sorted(prompts, key=lambda prompt: len(prompt) + chance.random() * _ALIKE)
        groups = [order[begin : begin + size] for begin in range(0, len(order), size)]
        chance.shuffle(groups)
        yield from groups


def allowed(wave: Wave, described: Described, excluded: Sequence[str]) -> Wave:
    """The wave without texts whose prompt contains an excluded one."""
    before, after = len(described.dialogue.before), len(described.dialogue.after)
    lines = zip(wave.tokens.tolist(), wave.starts.tolist(), strict=True)
    words = [line[before : max(before, start - after)] for line, start in lines]
    found = overlapping(described.tokenizer.batch_decode(words), excluded)
    return wave.without(found) if found else wave


def _judges(
    pen: Pen, described: Described, plan: Plan, asked: argparse.Namespace
) -> dict[str, Wave]:
    """Answers to Spec-Bench's prompts, drawn at temperature 1 and greedy; empty without them."""
    firsts = [described.encode(turns[0]) for turns in _spec_bench(asked.exclude)]
    prompts = [described.dialogue.prompt(words) for words in firsts]
    fitting = [prompt for prompt in prompts if len(prompt) <= plan.room][: asked.judged]
    if not fitting:
        return {}
    return {"drawn": pen.answers(fitting, 1.0), "greedy": pen.answers(fitting, 0.0)}


def read_prompts(
    path: Path | None, described: Described, excluded: Sequence[str], room: int
) -> list[Sequence[int]]:
    """Beginnings of texts, `room` tokens at most, without prompts that contain an excluded one."""
    if path is None:
        return []
    texts = [json.loads(line)["prompt"] for line in path.read_text().splitlines()]
    forbidden = set(overlapping(texts, excluded))
    kept = [text for place, text in enumerate(texts) if place not in forbidden]
    if not kept:
        return []
    encoded = described.tokenizer(kept, add_special_tokens=False)["input_ids"]
    prompts = [described.dialogue.prompt(words) for words in encoded]
    return [prompt for prompt in prompts if len(prompt) <= room]


def _spec_bench(paths: Sequence[Path]) -> list[list[str]]:
    return [json.loads(line)["turns"] for path in paths for line in path.read_text().splitlines()]


def _save_laws(path: Path, laws: Sequence[Kept]) -> None:
    arrays: dict[str, Any] = {}
    for order, law in enumerate(laws, 1):
        arrays |= {
            f"keys{order}": law.keys.cpu().numpy().astype(np.uint32),
            f"counts{order}": law.counts.cpu().numpy().astype(np.uint32),
            f"lengths{order}": law.lengths.cpu().numpy().astype(np.uint8),
            f"ids{order}": law.ids.cpu().numpy().astype(np.uint32),
            f"chances{order}": law.chances.cpu().numpy().astype(np.float16),
            f"worths{order}": law.worths.log().cpu().numpy().astype(np.float16),
        }
    np.savez_compressed(path, **arrays)


def _save_lessons(path: Path, held: Pool) -> None:
    arrays: dict[str, Any] = {
        "tokens": held.tokens.int(),
        "starts": held.starts,
        "ends": held.ends,
        "heats": held.heats,
        "ids": held.ids,
        "chances": held.chances,
    }
    arrays = {name: part.cpu().numpy() for name, part in arrays.items()}
    np.savez_compressed(path, **arrays)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--target", default="smollm2-135m-instruct")
    made.add_argument("--head", default="smollm2-135m-instruct-eagle", help="what heads begin as")
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--prompts", type=Path, help="JSON lines with `prompt`")
    made.add_argument(
        "--openings", type=Path, required=True, help="of the target's own prompts, one a line"
    )
    made.add_argument(
        "--exclude",
        type=Path,
        nargs="*",
        default=[],
        help="Spec-Bench's lines: no text may contain a turn; first turns judge the heads",
    )
    made.add_argument(
        "--texts", type=Path, nargs="*", default=[], help="texts.npz of earlier runs, learnt, too"
    )
    made.add_argument("--device", default="cuda")
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--batch", type=int, default=4096, help="texts side by side")
    made.add_argument("--prompt-tokens", type=int, default=160, help="most of its own prompts")
    made.add_argument("--room", type=int, default=384, help="most tokens before an answer")
    made.add_argument("--answer-tokens", type=int, default=192)
    made.add_argument("--held", type=int, default=400, help="texts held out")
    made.add_argument("--judged", type=int, default=240, help="prompts of --exclude that judge")
    made.add_argument("--writing-s", type=float, default=120.0)
    made.add_argument("--training-s", type=float, default=300.0)
    made.add_argument(
        "--tokens", type=int, default=20_000, help="of a step, prompts and padding included"
    )
    made.add_argument("--rate", type=float, default=2e-3, help="AdamW's, at its highest")
    made.add_argument(
        "--inner", type=int, nargs="+", default=[1536], help="units in the MLP of each head"
    )
    made.add_argument(
        "--head-tokens", type=int, default=0, help="that heads draft; no fewer than --head has"
    )
    made.add_argument(
        "--most-bytes", type=int, default=12_500_000, help="of laws.npz, about; 0: no laws"
    )
    return made


if __name__ == "__main__":
    options = parser().parse_args()
    found = teach(options)
    (options.out / "report.json").write_text(json.dumps(found, indent=1) + "\n")
