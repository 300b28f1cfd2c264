"""Tokens a second of whole answers with --batch-invariant and without, for crowds of several sizes.

    python -m research.invariant_answers --tokens 32 --repeats 3

Two clusters of real processes on the same cores, one in the mode and one not. The same crowds ask
both in turns, plainly and with the n-gram drafts of `paceline up`, each session in a scope of its
own. Beside tokens a second there is the CPU time of the verifier's process for each token: on a
machine that does other things, too, that says more.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from paceline import Client

from bench.cpu import cpu_seconds
from bench.prompts import SPEC_BENCH, load_prompts
from research.command import measuring_parser, ratios, run, say, table
from services.cluster.asking import follow
from services.cluster.local import Cluster, local_cluster
from services.cluster.specs import ClusterOptions

CROWDS = (1, 8, 16)
ASKED: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "ephemeral": True}
WAYS: dict[str, dict[str, Any]] = {"plain": {"disable_speculative_decoding": True}, "n-grams": {}}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two clusters."""

    client: Client
    cluster: Cluster

    def cpu(self) -> float:
        """CPU seconds that the verifier's process has used."""
        used = [cpu_seconds(pid) for name, pid in self.cluster.pids.items() if "verifier" in name]
        return sum(one for one in used if one is not None)

    async def crowd(self, prompts: list[str], tokens: int, how: dict[str, Any]) -> dict[str, float]:
        """Tokens a second, and milliseconds of CPU a token, of these prompts at once."""
        began, used = time.perf_counter(), self.cpu()
        asked = {"max_tokens": tokens, **ASKED, **how}
        runs = await asyncio.gather(
            *(follow(self.client, {"prompt": text, **asked}, lambda _: None) for text in prompts)
        )
        said = sum(one.tokens for one in runs)
        return {
            "tokens_s": said / (time.perf_counter() - began),
            "cpu_ms": 1e3 * (self.cpu() - used) / said,
        }


async def measured(asked: argparse.Namespace) -> dict[str, Any]:
    """Every figure taken, by way and crowd; and the machine's load meanwhile."""
    prompts = [prompt.text for prompt in load_prompts(SPEC_BENCH, max(asked.crowds))]
    taken: dict[str, list[dict[str, float]]] = {}
    loads = [os.getloadavg()[0]]
    async with AsyncExitStack() as stack:
        sides = {mode: await _side(stack, asked, invariant=mode == "with") for mode in _MODES}
        for side in sides.values():
            # What is made at the first step of each size is no part of any figure.
            await side.crowd(prompts, 4, {})
        for repeat in range(asked.repeats):
            say(f"repeat {repeat + 1}/{asked.repeats}")
            for crowd in asked.crowds:
                for way, how in WAYS.items():
                    for mode in _MODES if repeat % 2 == 0 else reversed(_MODES):
                        found = await sides[mode].crowd(prompts[:crowd], asked.tokens, how)
                        taken.setdefault(f"{way} {crowd} {mode}", []).append(found)
                        told = ", ".join(f"{name} {one:.1f}" for name, one in found.items())
                        say(f"{way}, {crowd} at once, {mode}: {told}")
                    loads.append(os.getloadavg()[0])
    return {"figures": taken, "load": {"min": min(loads), "max": max(loads)}}


_MODES = ("without", "with")


async def _side(stack: AsyncExitStack, asked: argparse.Namespace, *, invariant: bool) -> Side:
    options = ClusterOptions(
        asked.model,
        dtype=asked.dtype,
        batch_invariant=invariant,
        verifier_threads=asked.threads,
    )
    cluster = await stack.enter_async_context(local_cluster(options, say))
    return Side(await stack.enter_async_context(Client(cluster.address)), cluster)


def rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each way and crowd: medians of both modes, and the ratios of their pairs."""
    figures, made = report["figures"], []
    for name in dict.fromkeys(key.rpartition(" ")[0] for key in figures):
        sides = [figures[f"{name} {mode}"] for mode in _MODES]
        row: dict[str, Any] = {"way, sessions": name}
        for figure in ("tokens_s", "cpu_ms"):
            each = [[one[figure] for one in side] for side in sides]
            ratio = ratios(each[1], each[0])
            row |= {f"{figure} {mode}": median(own) for mode, own in zip(_MODES, each, strict=True)}
            row[f"{figure} ratio"] = (
                f"{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})"
            )
        made.append(row)
    return made


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    columns = {"way, sessions": ""}
    for figure in ("tokens_s", "cpu_ms"):
        columns |= {f"{figure} {mode}": ".1f" for mode in _MODES} | {f"{figure} ratio": ""}
    load = report["load"]
    return f"{table(columns, rows(report))}\nload {load['min']:.0f} to {load['max']:.0f}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__, dtype="bfloat16", tokens=32, repeats=3)
    made.add_argument("--crowds", type=int, nargs="+", default=CROWDS, help="sessions at once")
    return made


if __name__ == "__main__":
    run(parser(), lambda asked: asyncio.run(measured(asked)), show)
