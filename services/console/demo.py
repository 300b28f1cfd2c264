"""`paceline demo`: three prompts through a cluster of real processes, beside plain decoding.

Plain decoding runs twice: on the verifier's cores, in the same cluster, and on all
cores of the machine, in a cluster of a verifier alone. With drafts and without take turns in
going first, and every answer has a scope of its own: it finds nothing of those before it, as a
user's first request does, which is checked (`fresh`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from paceline import Client, PacelineError
from rich.console import Console

from services.cluster.asking import follow, question
from services.cluster.figures import Measured, by_source, common_prefix, summary
from services.cluster.flags import complain
from services.cluster.fresh import FRESH, Recalled, require_fresh
from services.cluster.lifetime import unless_stopped
from services.cluster.local import Cluster, local_cluster
from services.cluster.models import DEMO_MODEL, drafter_for
from services.cluster.specs import ClusterOptions, Dtype, Target
from services.console.demo_table import (
    LEGEND,
    Answered,
    decoding_table,
    sources_table,
    times_table,
    verdict,
)
from services.console.generate import shown_by
from services.console.render import Colours, Marks
from services.console.up import describe
from services.contract.errors import PacelineError as ServerError
from services.runtime.options import option, options

MAX_TOKENS = 72


@options
class DemoOptions:
    """The models."""

    target: Target = DEMO_MODEL
    draft: str | None = option(
        "Draft model or head; empty: n-grams alone; left out: a head where the demo model runs.",
        None,
        variable=True,
    )
    dtype: Dtype = option(
        "Number format of the models; auto: the faster one here.", "auto", variable=True
    )

    @property
    def cluster(self) -> ClusterOptions:
        """Drafter and verifier on cores of their own."""
        draft = drafter_for(self.target, self.draft)
        return ClusterOptions(target=self.target, draft=draft, dtype=self.dtype)

    @property
    def alone(self) -> ClusterOptions:
        """A verifier with every core, and nothing else."""
        return replace(self.cluster, draft=None, drafters=0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, and why it is here."""

    title: str
    text: str

    @property
    def name(self) -> str:
        """The title without the reason."""
        return self.title.partition(":")[0]


PROMPTS = (
    Prompt(
        "text to repeat: much can be copied from the prompt",
        "Correct the spelling and repeat the whole text:\n"
        "The old lighthouse stood on the cliff above the harbor. Every evening the keeper "
        "climbed the stairs to lite the lamp. Ships that passed in the night could see its "
        "beam from twenty miles away.",
    ),
    Prompt(
        "code to change: some can be copied",
        "Add a docstring to this Python function and show the whole function:\n```python\n"
        "def count_words(text):\n    counts = {}\n    for word in text.split():\n"
        "        word = word.lower()\n        counts[word] = counts.get(word, 0) + 1\n"
        "    return counts\n```",
    ),
    Prompt(
        "a question: nothing to copy",
        "Why is the sky blue? Answer in three sentences.",
    ),
)


def run_demo(options: DemoOptions) -> int:
    """Show three prompts; the exit status (0 = all answered, and every process ended)."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        done = asyncio.run(unless_stopped(_demo(console, options)))
    except (ServerError, PacelineError) as error:
        return complain("demo", error, status=1)
    if not done:
        return complain("demo", InterruptedError("stopped before the end"), status=130)
    console.print("Every process has ended.", style="dim")
    return 0


async def _demo(console: Console, options: DemoOptions) -> bool:
    async with _served(console, options.cluster) as (client, cluster):
        await _introduce(console, client, cluster)
        async with Recalled(cluster.drafters) as recalled:
            pairs = [
                await _answer(console, client, recalled, prompt, plain_first=number % 2 == 1)
                for number, prompt in enumerate(PROMPTS)
            ]
    everywhere = await _on_all_cores(console, options)
    answered = [
        Answered(prompt.name, drafted, plain, all_cores)
        for prompt, (drafted, plain), all_cores in zip(PROMPTS, pairs, everywhere, strict=True)
    ]
    console.print()
    console.print(decoding_table(answered))
    console.print()
    console.print(times_table(answered))
    console.print()
    console.print(sources_table(answered))
    console.print(
        f"Greedy, {options.cluster.number_format}, one run each (make bench repeats).", style="dim"
    )
    console.print(LEGEND, style="dim", soft_wrap=False)
    console.print(verdict(answered), soft_wrap=False)
    return True


@asynccontextmanager
async def _served(
    console: Console, options: ClusterOptions
) -> AsyncIterator[tuple[Client, Cluster]]:
    """A cluster that has answered once: the first answer of a process also warms it up."""
    console.print(f"Starting {describe(options)}, an orchestrator and a store …", style="dim")
    began = time.monotonic()
    async with local_cluster(options, lambda line: console.print(line, style="dim")) as cluster:
        console.print(f"Serving after {time.monotonic() - began:.1f} s.", style="dim")
        async with Client(cluster.address) as client:
            warm_up = {"prompt": "Hello", "temperature": 0.0, "max_tokens": 16, **FRESH}
            await follow(client, warm_up, _unseen)
            yield client, cluster


async def _introduce(console: Console, client: Client, cluster: Cluster) -> None:
    server, model = await client.server_info(), await client.model_info()
    workers = ", ".join(f"{worker.worker_id} on {worker.address}" for worker in server.workers)
    processes = ", ".join(f"{name} {pid}" for name, pid in sorted(cluster.pids.items()))
    console.print(f"Model {model.model}; orchestrator on {cluster.address}; {workers}", style="dim")
    console.print(f"Processes (ps): {processes}", style="dim")
    console.print(Colours.legend if console.is_terminal else Marks.legend)


async def _answer(
    console: Console, client: Client, recalled: Recalled, prompt: Prompt, *, plain_first: bool
) -> tuple[Measured, Measured]:
    """The prompt answered with drafts, which is shown, and by plain decoding."""
    asked = await _asked(client, prompt)
    plain = await _plain(client, asked, prompt) if plain_first else None
    drafted = await _drafted(console, client, recalled, prompt, asked)
    plain = plain or await _plain(client, asked, prompt)
    console.print(_beside(drafted, plain), style="dim")
    return drafted, plain


async def _drafted(
    console: Console, client: Client, recalled: Recalled, prompt: Prompt, asked: dict[str, Any]
) -> Measured:
    renderer = Colours(console) if console.is_terminal else Marks(console)
    console.print()
    console.rule(prompt.title, style="dim", align="left")
    console.print(prompt.text, style="dim", markup=False)
    console.print()
    known = await recalled.tokens()
    drafted = await follow(client, asked, shown_by(renderer))
    require_fresh(f"{prompt.name}, drafted", [drafted], await recalled.tokens() - known)
    console.print()
    console.print(summary(drafted), style="dim")
    console.print(by_source(drafted) or "nothing was drafted", style="dim")
    return drafted


async def _on_all_cores(console: Console, options: DemoOptions) -> list[Measured]:
    """Plain decoding of every prompt by a verifier that has the whole machine."""
    console.print()
    console.print("Plain decoding once more, on all cores:", style="dim")
    async with _served(console, options.alone) as (client, _):
        return [await _plain(client, await _asked(client, one), one) for one in PROMPTS]


async def _asked(client: Client, prompt: Prompt) -> dict[str, Any]:
    asked = await question(client, prompt.text)
    greedy = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "include_rounds": True}
    return {**asked, **greedy, **FRESH}


async def _plain(client: Client, asked: dict[str, Any], prompt: Prompt) -> Measured:
    plain = await follow(client, asked | {"disable_speculative_decoding": True}, _unseen)
    require_fresh(f"{prompt.name}, plain", [plain], recalled=0)
    return plain


def _unseen(_: object) -> None:
    """Some generations are only measured."""


def _beside(drafted: Measured, plain: Measured) -> str:
    agreed = common_prefix(drafted.token_ids, plain.token_ids)
    equal = drafted.token_ids == plain.token_ids
    same = "the same tokens" if equal else f"other tokens from token {agreed} on (a near-tie)"
    return (
        f"plain decoding: {plain.decode_rate:.1f} tokens/s after the first, "
        f"which came after {plain.first_token_s:.2f} s; {same}"
    )
