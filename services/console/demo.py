"""`paceline demo`: three prompts through a cluster of real processes, beside plain decoding."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline import Client, PacelineError
from rich.console import Console
from rich.table import Table

from services.common.errors import PacelineError as ServerError
from services.console.cluster import ClusterOptions
from services.console.figures import Measured, common_prefix, summary
from services.console.generate import follow, question, shown_by
from services.console.lifetime import unless_stopped
from services.console.local import Cluster, local_cluster
from services.console.process import complain
from services.console.render import Colours, Marks
from services.console.up import describe

# Equal text is promised, and so shown, in float32.
DTYPE = "float32"
MAX_TOKENS = 72


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, and why it is here."""

    title: str
    text: str


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


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, answered with speculation and by plain decoding."""

    prompt: Prompt
    drafted: Measured
    plain: Measured

    @property
    def same(self) -> bool:
        """Whether both gave the same tokens."""
        return self.drafted.token_ids == self.plain.token_ids


def run_demo(target: str) -> int:
    """Show three prompts; the exit status (0 = all answered, and every process ended)."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        done = asyncio.run(unless_stopped(_demo(console, target)))
    except (ServerError, PacelineError) as error:
        return complain("demo", error, status=1)
    if not done:
        return complain("demo", InterruptedError("stopped before the end"), status=130)
    console.print("Every process has ended.", style="dim")
    return 0


async def _demo(console: Console, target: str) -> bool:
    options = ClusterOptions(target=target, dtype=DTYPE)
    console.print(f"Starting {describe(options)}, an orchestrator and a store …", style="dim")
    began = time.monotonic()
    async with local_cluster(options, lambda line: console.print(line, style="dim")) as cluster:
        console.print(f"Serving after {time.monotonic() - began:.1f} s.", style="dim")
        async with Client(cluster.address) as client:
            await _introduce(console, client, cluster)
            pairs = [await _answer(console, client, prompt) for prompt in PROMPTS]
    _conclude(console, pairs)
    return True


async def _introduce(console: Console, client: Client, cluster: Cluster) -> None:
    server, model = await client.server_info(), await client.model_info()
    workers = ", ".join(f"{worker.worker_id} on {worker.address}" for worker in server.workers)
    processes = ", ".join(f"{name} {pid}" for name, pid in sorted(cluster.pids.items()))
    console.print(f"Model {model.model}; orchestrator on {cluster.address}; {workers}", style="dim")
    console.print(f"Processes (ps): {processes}", style="dim")
    console.print(Colours.legend if console.is_terminal else Marks.legend)
    # The first generation of a fresh process also pays for its warm-up.
    await follow(client, {"prompt": "Hello", "temperature": 0.0, "max_tokens": 8}, _unseen)


async def _answer(console: Console, client: Client, prompt: Prompt) -> Pair:
    renderer = Colours(console) if console.is_terminal else Marks(console)
    asked: dict[str, Any] = await question(client, prompt.text)
    asked |= {"temperature": 0.0, "max_tokens": MAX_TOKENS, "include_rounds": True}
    console.print()
    console.rule(prompt.title, style="dim", align="left")
    console.print(prompt.text, style="dim", markup=False)
    console.print()
    drafted = await follow(client, asked, shown_by(renderer))
    console.print()
    console.print(summary(drafted), style="dim")
    plain = await follow(client, asked | {"disable_speculative_decoding": True}, _unseen)
    pair = Pair(prompt, drafted, plain)
    console.print(_beside(pair), style="dim")
    return pair


def _unseen(_: object) -> None:
    """Some generations are only measured."""


def _beside(pair: Pair) -> str:
    agreed = common_prefix(pair.drafted.token_ids, pair.plain.token_ids)
    same = "the same tokens" if pair.same else f"other tokens from token {agreed} on (a near-tie)"
    return f"plain decoding: {pair.plain.tokens_per_second:.1f} tokens/s, {same}"


def _conclude(console: Console, pairs: Sequence[Pair]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=True)
    for heading in ("prompt", "tokens", "tokens/s", "plain", "ratio", "efficiency", "same text"):
        table.add_column(heading, justify="left" if heading == "prompt" else "right")
    for pair in pairs:
        table.add_row(
            pair.prompt.title.partition(":")[0],
            str(pair.drafted.tokens),
            f"{pair.drafted.tokens_per_second:.1f}",
            f"{pair.plain.tokens_per_second:.1f}",
            f"{pair.drafted.tokens_per_second / pair.plain.tokens_per_second:.2f}",
            f"{pair.drafted.block_efficiency:.2f}",
            "yes" if pair.same else "no",
        )
    console.print()
    console.print(table)
    console.print(
        f"Greedy, {DTYPE}, one run each (make bench repeats). "
        "Efficiency: tokens per target forward; plain = 1.",
        style="dim",
    )
