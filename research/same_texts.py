"""How many texts are the same with drafts and in company as in plain decoding alone.

    python -m research.same_texts --dtype bfloat16 --batch-invariant

The target answers prompts of Spec-Bench greedily, and as often with a seed, on a cluster of real
processes. First plainly, one after the other. Then with drafts (n-grams, or --draft with them), as
`paceline up` makes them, in crowds of 1, 4 and 16 and with windows of 1 to 8. A text is the same if
all its tokens are.
"""

import argparse
import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from paceline import Client, Generation

from bench.prompts import SPEC_BENCH, load_prompts
from research.command import measuring_parser, run, say, table
from services.cluster.local import local_cluster
from services.cluster.specs import ClusterOptions

CROWDS = (1, 4, 16)
WINDOWS = (1, 2, 3, 5, 8)


class Asking:
    """The texts of one cluster."""

    def __init__(self, client: Client, asked: argparse.Namespace) -> None:
        self._client = client
        self._tokens = asked.tokens
        prompts = [one.text for one in load_prompts(SPEC_BENCH, 240)]
        draws = range(asked.first, asked.first + asked.texts)
        self._asked = [(prompts[draw % len(prompts)], draw) for draw in draws]

    async def plain(self, *, greedy: bool) -> list[Generation]:
        """Each alone, without drafts."""
        return [await self._say(*one, greedy, window=0) for one in self._asked]

    async def drafted(self, *, greedy: bool) -> list[Generation]:
        """In crowds of several sizes, with windows of several sizes."""
        crowds, windows = itertools.cycle(CROWDS), itertools.cycle(WINDOWS)
        texts: list[Generation] = []
        while len(texts) < len(self._asked):
            crowd = self._asked[len(texts) : len(texts) + next(crowds)]
            asking = (self._say(*one, greedy, window=next(windows)) for one in crowd)
            texts += await asyncio.gather(*asking)
        return texts

    async def _say(self, prompt: str, seed: int, greedy: bool, window: int) -> Generation:
        how: dict[str, Any] = {"temperature": 0.0} if greedy else {"temperature": 1.0, "seed": seed}
        if window:
            how["num_speculative_tokens"] = window
        else:
            how["disable_speculative_decoding"] = True
        asked = {"max_tokens": self._tokens, "ignore_eos": True, "ephemeral": True}
        said: Generation = await self._client.generate(prompt, **asked, **how)
        return said


async def measured(asked: argparse.Namespace) -> dict[str, Any]:
    """Of each kind of text, how many are the same, and how many tokens were drafted."""
    options = ClusterOptions(
        asked.model,
        asked.draft,
        dtype=asked.dtype,
        batch_invariant=asked.batch_invariant,
        verifier_threads=asked.threads,
    )
    report: dict[str, Any] = {}
    async with local_cluster(options, say) as cluster, Client(cluster.address) as client:
        for kind in ("greedy", "seeded"):
            asking = Asking(client, asked)
            alone = await asking.plain(greedy=kind == "greedy")
            say(f"{kind}: {len(alone)} texts in plain decoding")
            found = compared(alone, await asking.drafted(greedy=kind == "greedy"))
            say(f"{kind}: {found['same']} of {found['texts']} are the same beside others")
            report[kind] = found
    return {"texts": report}


def compared(alone: Sequence[Generation], drafted: Sequence[Generation]) -> dict[str, Any]:
    """How many of the texts are the same."""
    pairs = list(zip(alone, drafted, strict=True))
    return {
        "texts": len(pairs),
        "same": sum(one.token_ids == other.token_ids for one, other in pairs),
        "tokens": sum(len(one.token_ids) for one in alone),
        "accepted": sum(one.speculation.num_accepted_draft_tokens for one in drafted),
    }


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    rows = [{"kind": kind} | found for kind, found in report["texts"].items()]
    return table({"kind": "", "texts": "", "same": "", "tokens": "", "accepted": ""}, rows)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__, dtype="bfloat16", tokens=32)
    made.add_argument("--draft", help="a draft model or a head; left out: n-grams")
    made.add_argument("--texts", type=int, default=500, help="of each kind")
    made.add_argument("--first", type=int, default=0, help="number of the first; also its seed")
    made.add_argument("--batch-invariant", action="store_true", help="the mode")
    return made


if __name__ == "__main__":
    run(parser(), lambda asked: asyncio.run(measured(asked)), show)
