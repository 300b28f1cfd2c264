"""`paceline demo`: three prompts through a cluster of real processes, beside plain decoding.

Each prompt is answered several times with drafts and by plain decoding, in turns; the first
answer is shown, and of the others the medians. Every answer has a scope of its own: it finds
nothing of those before it, as a user's first request does, which is checked (`fresh`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from paceline import Client, Event, PacelineError
from rich.console import Console

from services.cluster.asking import follow, question
from services.cluster.figures import by_source, summary
from services.cluster.flags import complain
from services.cluster.fresh import FRESH, Recalled, require_fresh
from services.cluster.lifetime import unless_stopped
from services.cluster.local import Cluster, local_cluster
from services.cluster.models import DEMO_MODEL, drafter_for
from services.cluster.specs import ClusterOptions, Dtype, Target
from services.console.demo_table import LEGEND, Answered, table, verdict
from services.console.generate import shown_by
from services.console.render import Colours, Marks, Renderer
from services.console.up import describe
from services.contract.errors import PacelineError as ServerError
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
    dtype: Dtype = option("Number format of the models.", "bfloat16", variable=True)

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
    made, began = options.cluster, time.monotonic()
    console.print(f"Starting {describe(made)}, an orchestrator and a store …", style="dim")
    async with local_cluster(made, lambda line: console.print(line, style="dim")) as cluster:
        console.print(f"Serving after {time.monotonic() - began:.1f} s.", style="dim")
        async with Client(cluster.address) as client, Recalled(cluster.drafters) as recalled:
            await _introduce(console, client, cluster)
            await _warm_up(client)
            answered = [await _answer(console, client, recalled, prompt) for prompt in PROMPTS]
    console.print()
    console.print(table(answered))
    console.print()
    told = f"Greedy, {options.dtype}, medians of {RUNS} runs each way, in turns. {LEGEND}"
    console.print(told, style="dim", soft_wrap=False)
    console.print()
    console.print(verdict(answered), style="bold", soft_wrap=False)
    return True


async def _introduce(console: Console, client: Client, cluster: Cluster) -> None:
    server, model = await client.server_info(), await client.model_info()
    workers = ", ".join(f"{worker.worker_id} on {worker.address}" for worker in server.workers)
    processes = ", ".join(f"{name} {pid}" for name, pid in sorted(cluster.pids.items()))
    console.print(f"Model {model.model}; orchestrator on {cluster.address}; {workers}", style="dim")
    console.print(f"Processes (ps): {processes}", style="dim")
    console.print(Colours.legend if console.is_terminal else Marks.legend)


async def _warm_up(client: Client) -> None:
    """The first answer of a process also warms it up."""
    asked = {"prompt": "Hello", "temperature": 0.0, "max_tokens": 16, **FRESH}
    await follow(client, asked, _unseen)


async def _answer(console: Console, client: Client, recalled: Recalled, prompt: Prompt) -> Answered:
    """The prompt answered in turns with drafts and without; the first answer is shown."""
    console.print()
    console.rule(prompt.title, style="dim", align="left")
    console.print(prompt.text, style="dim", markup=False)
    console.print()
    known, asked = await recalled.tokens(), await _asked(client, prompt)
    shown = await follow(client, asked, shown_by(_renderer(console)))
    console.print()
    console.print(summary(shown), style="dim")
    console.print(by_source(shown) or "nothing was drafted", style="dim")
    drafted, plain = [shown], [await follow(client, asked | PLAIN, _unseen)]
    while len(drafted) < RUNS:
        drafted.append(await follow(client, asked, _unseen))
        plain.append(await follow(client, asked | PLAIN, _unseen))
    require_fresh(prompt.name, [*drafted, *plain], await recalled.tokens() - known)
    answered = Answered(prompt.name, drafted, plain)
    console.print(str(answered), style="dim")
    return answered


def _renderer(console: Console) -> Renderer:
    return Colours(console) if console.is_terminal else Marks(console)


async def _asked(client: Client, prompt: Prompt) -> dict[str, Any]:
    asked = await question(client, prompt.text)
    greedy = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "include_rounds": True}
    return {**asked, **greedy, **FRESH}


def _unseen(_: Event) -> None:
    """Some generations are only measured."""
