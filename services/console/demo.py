"""`paceline demo`: three prompts through a cluster of real processes, beside plain decoding.

Each prompt is answered several times with drafts and by plain decoding, in turns; the first
answer is shown, and of the others the medians. Every answer has a scope of its own: it finds
nothing of those before it, as a user's first request does, which is checked (`fresh`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from paceline import Client, Event, PacelineError
from rich.console import Console

from services.cluster.asking import follow, question
from services.cluster.figures import Measured, by_source, summary
from services.cluster.flags import complain
from services.cluster.fresh import FRESH, recalled_tokens, require_fresh
from services.cluster.lifetime import unless_stopped
from services.cluster.local import Cluster, local_cluster
from services.cluster.models import DEMO_MODEL, drafter_for
from services.cluster.specs import ClusterOptions, Dtype, Target
from services.console.demo_table import LEGEND, Answered, table, verdict
from services.console.generate import shown_by
from services.console.render import Colours, Marks, Renderer
from services.console.up import describe
from services.contract.errors import PacelineError as ServerError
from services.contract.types import Role
from services.runtime.options import option, options

MAX_TOKENS = 72
PLAIN = {"disable_speculative_decoding": True}
RUNS = 3
"""Of each prompt, with drafts and without."""


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
        """What answers."""
        draft = drafter_for(self.target, self.draft)
        return ClusterOptions(target=self.target, draft=draft, dtype=self.dtype)


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
    async with (
        _served(console, options.cluster) as (client, cluster),
        _plain(console, options.cluster, client) as plain,
    ):
        await _introduce(console, client, cluster)
        ask = Asker(console, client, plain, cluster.workers)
        answered = [await ask.both_ways(prompt) for prompt in PROMPTS]
    console.print()
    console.print(table(answered))
    console.print()
    form = options.cluster.number_format
    told = f"Greedy, {form}, medians of {RUNS} runs each way, in turns. {LEGEND}"
    console.print(told, style="dim", soft_wrap=False)
    console.print()
    console.print(verdict(answered), style="bold", soft_wrap=False)
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


@asynccontextmanager
async def _plain(
    console: Console, options: ClusterOptions, client: Client
) -> AsyncIterator[Client]:
    """Who decodes without drafts, on every core: this cluster, or a verifier alone.

    Where a draft model has a core of its own, its verifier has not got them all.
    """
    if not options.apart:
        yield client
        return
    async with _served(console, replace(options, draft=None, drafters=0)) as (alone, _):
        yield alone


async def _introduce(console: Console, client: Client, cluster: Cluster) -> None:
    server, model = await client.server_info(), await client.model_info()
    workers = ", ".join(f"{worker.worker_id} on {worker.address}" for worker in server.workers)
    processes = ", ".join(f"{name} {pid}" for name, pid in sorted(cluster.pids.items()))
    console.print(f"Model {model.model}; orchestrator on {cluster.address}; {workers}", style="dim")
    console.print(f"Processes (ps): {processes}", style="dim")
    console.print(Colours.legend if console.is_terminal else Marks.legend)


@dataclass(frozen=True, slots=True)
class Asker:
    """Who is asked, and where answers are shown; `plain`: the one without drafts."""

    console: Console
    client: Client
    plain: Client
    workers: Sequence[tuple[str, Role]]

    async def both_ways(self, prompt: Prompt) -> Answered:
        """The prompt answered in turns with drafts and without; the first answer is shown."""
        known, asked = await recalled_tokens(self.workers), await _asked(self.client, prompt)
        drafted, plain = [await self._shown(prompt, asked)], [await self._without(asked)]
        while len(drafted) < RUNS:
            drafted.append(await follow(self.client, asked, _unseen))
            plain.append(await self._without(asked))
        taken = await recalled_tokens(self.workers) - known
        require_fresh(prompt.name, [*drafted, *plain], taken)
        answered = Answered(prompt.name, drafted, plain)
        self.console.print(str(answered), style="dim")
        return answered

    async def _shown(self, prompt: Prompt, asked: dict[str, Any]) -> Measured:
        console = self.console
        console.print()
        console.rule(prompt.title, style="dim", align="left")
        console.print(prompt.text, style="dim", markup=False)
        console.print()
        shown = await follow(self.client, asked, shown_by(_renderer(console)))
        console.print()
        console.print(summary(shown), style="dim")
        console.print(by_source(shown) or "nothing was drafted", style="dim")
        return shown

    async def _without(self, asked: dict[str, Any]) -> Measured:
        return await follow(self.plain, asked | PLAIN, _unseen)


def _renderer(console: Console) -> Renderer:
    return Colours(console) if console.is_terminal else Marks(console)


async def _asked(client: Client, prompt: Prompt) -> dict[str, Any]:
    asked = await question(client, prompt.text)
    greedy = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "include_rounds": True}
    return {**asked, **greedy, **FRESH}


def _unseen(_: Event) -> None:
    """Some generations are only measured."""
