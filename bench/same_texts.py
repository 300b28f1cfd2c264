"""How many texts are the same in company, and with drafts, as in plain decoding alone.

    python -m bench.same_texts --generate
    python -m bench.same_texts --dtype bfloat16 --batch-invariant

The target answers prompts of Spec-Bench greedily, and as often with a seed, on a cluster of real
processes. First plainly, one after the other. Then in crowds of 1, 4 and 16 without drafts, and
with them (n-grams, or --draft with them), as `paceline up` makes them, in windows of 1 to 8. A text
is `same` if all its tokens are, and `to the bit` if their log-probabilities are, too. `near` counts
tokens of greedy texts whose two best choices rounding can turn (`services.engine.sampling.ties`),
and `parted there` the texts that part at such a token. With --generate the greedy texts of
`transformers.generate` are compared as well: its kernels are others.
"""

import argparse
import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from paceline import Client, Generation

from bench.command import measuring_parser, run, say, table
from bench.prompts import SPEC_BENCH, load_prompts
from services.cluster.local import local_cluster
from services.cluster.specs import ClusterOptions
from services.engine.native.dialogue import tokenizer_of
from services.engine.native.loading import load_model
from services.engine.sampling import rounding
from services.engine.spec import ModelSpec

CROWDS = (1, 4, 16)
WINDOWS = (1, 2, 3, 5, 8)


class Asking:
    """The texts of one cluster: of prompts, each with a seed, so many tokens."""

    def __init__(self, client: Client, asked: Sequence[tuple[str, int]], tokens: int) -> None:
        self._client, self._asked, self._tokens = client, asked, tokens

    async def plain(self, *, greedy: bool) -> list[Generation]:
        """Each alone, without drafts."""
        return [await self._say(*one, greedy, window=0) for one in self._asked]

    async def beside(self, windows: Sequence[int], *, greedy: bool) -> list[Generation]:
        """In crowds of several sizes, with windows of these sizes."""
        crowds, window = itertools.cycle(CROWDS), itertools.cycle(windows)
        texts: list[Generation] = []
        while len(texts) < len(self._asked):
            crowd = self._asked[len(texts) : len(texts) + next(crowds)]
            asking = (self._say(*one, greedy, window=next(window)) for one in crowd)
            texts += await asyncio.gather(*asking)
        return texts

    async def _say(self, prompt: str, seed: int, greedy: bool, window: int) -> Generation:
        how: dict[str, Any] = {"temperature": 0.0} if greedy else {"temperature": 1.0, "seed": seed}
        if window:
            how["num_speculative_tokens"] = window
        else:
            how["disable_speculative_decoding"] = True
        asked: dict[str, Any] = {"max_tokens": self._tokens, "ignore_eos": True, "logprobs": 2}
        said: Generation = await self._client.generate(prompt, ephemeral=True, **asked, **how)
        return said


def drawn(asked: argparse.Namespace) -> list[tuple[str, int]]:
    """Prompts, each with a seed."""
    prompts = [one.text for one in load_prompts(SPEC_BENCH, 240)]
    draws = range(asked.first, asked.first + asked.texts)
    return [(prompts[draw % len(prompts)], draw) for draw in draws]


async def measured(asked: argparse.Namespace) -> dict[str, Any]:
    """How many texts of each kind are the same, how many choices are near-ties."""
    options = ClusterOptions(
        asked.model,
        asked.draft,
        dtype=asked.dtype,
        batch_invariant=asked.batch_invariant,
        verifier_threads=asked.threads,
    )
    report: dict[str, Any] = {}
    async with local_cluster(options, say) as cluster, Client(cluster.address) as client:
        asking = Asking(client, drawn(asked), asked.tokens)
        for kind in ("greedy", "seeded"):
            greedy = kind == "greedy"
            alone = await asking.plain(greedy=greedy)
            say(f"{kind}: {len(alone)} texts in plain decoding")
            for name, windows in (("in crowds", (0,)), ("with drafts", WINDOWS)):
                texts = await asking.beside(windows, greedy=greedy)
                found = compared(alone, texts, rounding(asked.dtype) if greedy else None)
                say(f"{kind}, {name}: {found['same']} of {found['texts']} are the same")
                report[f"{kind}, {name}"] = found
            if greedy and asked.generate:
                report["greedy, transformers.generate"] = beside_generate(alone, asked)
    return {"texts": report}


def compared(
    alone: Sequence[Generation], others: Sequence[Generation], least: float | None
) -> dict[str, Any]:
    """How many of the texts are the same; `least`: margins up to it are near-ties."""
    accepted = sum(one.speculation.num_accepted_draft_tokens for one in others)
    alike = sum(one.logprobs == other.logprobs for one, other in zip(alone, others, strict=True))
    found = same(alone, [other.token_ids for other in others], least)
    return found | {"to the bit": alike, "accepted": accepted}


def same(
    alone: Sequence[Generation], others: Sequence[Sequence[int]], least: float | None
) -> dict[str, Any]:
    """How many texts have these tokens, and how many of the rest part at a near-tie."""
    places = [parting(*pair) for pair in zip(alone, others, strict=True)]
    found = {
        "texts": len(alone),
        "same": places.count(None),
        "tokens": sum(len(one.token_ids) for one in alone),
    }
    if least is None:
        return found
    ties = [[margin <= least for margin in margins(one)] for one in alone]
    there = [own[place] for own, place in zip(ties, places, strict=True) if place is not None]
    return found | {"near": sum(map(sum, ties)), "parted there": sum(there)}


def parting(one: Generation, other: Sequence[int]) -> int | None:
    """The place of the first token that is another one."""
    pairs = enumerate(zip(one.token_ids, other, strict=True))
    return next((place for place, (own, its) in pairs if own != its), None)


def margins(one: Generation) -> list[float]:
    """Of each token, how far its two best choices are apart."""
    return [row.top_logprobs[0] - row.top_logprobs[1] for row in one.logprobs]


def beside_generate(alone: Sequence[Generation], asked: argparse.Namespace) -> dict[str, Any]:
    """The texts beside those of transformers."""
    loaded = load_model(ModelSpec(asked.model, asked.dtype))
    tokenizer, model = tokenizer_of(loaded.bundle), loaded.model.eval()
    texts = []
    for prompt, _ in drawn(asked):
        ids = torch.tensor([tokenizer.encode(prompt)])
        how = {"max_new_tokens": asked.tokens, "do_sample": False, "pad_token_id": 0}
        made = model.generate(ids, eos_token_id=None, **how)
        texts.append(made[0, ids.shape[1] :].tolist())
    found = same(alone, texts, rounding(asked.dtype))
    say(f"transformers.generate: {found['same']} of {found['texts']} are the same")
    return found


_COLUMNS = ("texts", "same", "to the bit", "tokens", "near", "parted there", "accepted")


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    nothing = dict.fromkeys(_COLUMNS, "")
    rows = [{"kind": kind} | nothing | found for kind, found in report["texts"].items()]
    return table({"kind": ""} | nothing, rows)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__, dtype="float32", tokens=32)
    made.add_argument("--draft", help="a draft model or a head; left out: n-grams")
    made.add_argument("--texts", type=int, default=500, help="of each kind")
    made.add_argument("--first", type=int, default=0, help="number of the first; also its seed")
    made.add_argument("--batch-invariant", action="store_true", help="the mode")
    made.add_argument("--generate", action="store_true", help="beside transformers.generate, too")
    return made


if __name__ == "__main__":
    run(parser(), lambda asked: asyncio.run(measured(asked)), show)
