"""A stand-in draft model: the target with some of its layers left out.

    python -m research.thinned_draft --drop 8 --out DIR      then --draft DIR

The layers leave one at a time, each time the one that costs least overlap
sum(min(p, q)) of target distribution p and draft distribution q: the chance that a draft token is
accepted (Leviathan et al., 2211.17192, section 3.2). It is measured at temperature
1 on texts that the target wrote itself. Such a draft (Draft & Verify, 2309.08168,
skips layers too) is good for comparing rules, not for speed: it costs nearly as
much as its target.
"""

import argparse
import copy
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from bench.prompts import SPEC_BENCH, load_prompts
from bench.tokens import asked, source_folder
from research.command import measuring_parser, run
from services.engine.native.loading import read_folder
from services.engine.spec import ModelSpec
from services.engine.threads import pin

_LONGEST_PROMPT = 400
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "config.json", "paceline.json")


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what the target wrote after it; `start` is where that begins."""

    token_ids: Tensor
    start: int


def written(model: Any, tokenizer: Any, prompts: Sequence[str], tokens: int) -> list[Text]:
    """What the model answers to each prompt at temperature 1, `tokens` tokens each."""
    texts = []
    for seed, prompt in enumerate(prompts):
        ids = torch.tensor([asked(tokenizer, prompt)])
        torch.manual_seed(seed)
        answer = model.generate(
            ids, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=tokens
        )
        texts.append(Text(answer, ids.shape[1]))
    return texts


@torch.inference_mode()
def laws(model: Any, text: Text) -> Tensor:
    """The distribution of every token of the answer, [tokens, V]."""
    rows = text.token_ids.shape[1] - text.start + 1
    logits = model(text.token_ids, use_cache=False, logits_to_keep=rows).logits[0, :-1]
    return torch.softmax(logits.float(), dim=-1)


@contextmanager
def without(model: Any, dropped: Collection[int]) -> Iterator[None]:
    """The model with layers of these numbers left out."""
    whole = model.model.layers
    kept = [layer for number, layer in enumerate(whole) if number not in dropped]
    model.model.layers = torch.nn.ModuleList(kept)
    try:
        yield
    finally:
        model.model.layers = whole


def overlap(model: Any, texts: Sequence[Text], targets: Sequence[Tensor]) -> float:
    """Mean of sum(min(p, q)) over all answers; `targets` holds the p of each, [tokens, V]."""
    each = [
        torch.minimum(laws(model, text), p).sum(-1) for text, p in zip(texts, targets, strict=True)
    ]
    return torch.cat(each).mean().item()


def thin(model: Any, texts: Sequence[Text], count: int) -> Iterator[tuple[int, float]]:
    """The `count` layers to leave out, in turn, each with the overlap that is left."""
    targets = [laws(model, text) for text in texts]
    dropped: list[int] = []
    for _ in range(count):
        left: dict[int, float] = {}
        for layer in set(range(len(model.model.layers))) - set(dropped):
            with without(model, [*dropped, layer]):
                left[layer] = overlap(model, texts, targets)
        best = max(left, key=left.__getitem__)
        dropped.append(best)
        yield best, left[best]


def save(model: Any, dropped: Collection[int], source: Path, out: Path) -> None:
    """Write the thinned model, with the tokenizer of `source`, where `--draft` finds it."""
    whole, model.config = model.config, copy.deepcopy(model.config)
    with without(model, dropped):
        model.config.num_hidden_layers = len(model.model.layers)
        types = getattr(whole, "layer_types", None)
        if types:
            model.config.layer_types = [kind for i, kind in enumerate(types) if i not in dropped]
        model.save_pretrained(out)
    model.config = whole
    weights = {path.name for pattern in _WEIGHTS for path in source.glob(pattern)}
    for path in source.iterdir():
        if path.is_file() and path.name not in weights:
            shutil.copy(path, out / path.name)


def build(arguments: argparse.Namespace) -> dict[str, Any]:
    """Find the layers, unless they are given, and save what is left."""
    from transformers import AutoTokenizer

    pin(arguments.threads)
    source = source_folder(arguments.model)
    model = read_folder(source, ModelSpec(arguments.model)).eval()
    dropped = list(arguments.without)
    if not dropped:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
        texts = written(model, tokenizer, _prompts(arguments.prompts), arguments.tokens)
        print(f"{len(texts)} texts, {fmean(_lengths(texts)):.0f} tokens each")
        for layer, left in thin(model, texts, arguments.drop):
            dropped.append(layer)
            print(f"without layer {layer:>2}: overlap {left:.3f}", flush=True)
    save(model, dropped, source, arguments.out)
    return {"without": dropped, "out": str(arguments.out)}


def _prompts(count: int) -> list[str]:
    """Short prompts from the end of the set: the bench measures on those at its beginning."""
    every = load_prompts(SPEC_BENCH, len(SPEC_BENCH.read_text().splitlines()))
    return [one.text for one in reversed(every) if len(one.text) <= _LONGEST_PROMPT][:count]


def _lengths(texts: Sequence[Text]) -> list[int]:
    return [text.token_ids.shape[1] - text.start for text in texts]


def show(report: dict[str, Any]) -> str:
    """The report in a line."""
    return f"--without {' '.join(map(str, report['without']))}: written to {report['out']}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__, prompts=6, tokens=48)
    made.add_argument("--out", type=Path, required=True, help="folder for the draft model")
    made.add_argument("--drop", type=int, default=8, help="how many layers to leave out")
    made.add_argument("--without", type=int, nargs="+", default=[], help="these layers, no search")
    return made


if __name__ == "__main__":
    run(parser(), build, show)
