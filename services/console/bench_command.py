"""The flags of `paceline bench`; what they start is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cluster.models import DEMO_MODEL
from services.console.model_flags import (
    DraftDtype,
    Dtype,
    Lookahead,
    Method,
    Pool,
    SkipMask,
    Target,
)

BENCH_SECTIONS = {
    "Models": ("target", "draft", "lookahead", "skip_mask", "dtype", "draft_dtype"),
    "What is compared": (
        "method",
        "drafters",
        "pool",
        "pacings",
        "rejection_sample_methods",
        "num_candidates",
        "num_speculative_tokens",
        "fixed_tokens",
    ),
    "What is asked": (
        "prompts",
        "prompt_set",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "repeats",
        "concurrency",
        "seen_before",
    ),
    "Peers": ("peers", "peer_cores", "peer_dtype", "vllm_python", "llama_server"),
    "Without a model": ("synthetic", "trace", "delay_ms"),
    "Results": ("resume", "out", "summary"),
}


def bench(
    target: Target = DEMO_MODEL,
    draft: Annotated[str | None, typer.Option(help="Draft model; left out: n-grams.")] = None,
    lookahead: Lookahead = None,
    skip_mask: SkipMask = None,
    method: Method = "",
    drafters: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Drafters to compare, a cluster each: ngram, model, skip, lookahead, graph, "
            "or several joined by +.",
        ),
    ] = "",
    pool: Pool = None,
    dtype: Annotated[Dtype, typer.Option(help="Number format of the models.")] = "float32",
    draft_dtype: DraftDtype = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines as Spec-Bench has them; left out: its own.")
    ] = None,
    prompt_set: Annotated[
        str,
        typer.Option(
            "--set",
            metavar="all|stratified|N",
            help="Which of them: all, three of each category (always the same), or a number.",
        ),
    ] = "6",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of each answer.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 = greedy.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Keep the likeliest tokens, up to this.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first repeat's answers.")] = 1,
    pacings: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Pacings of the orchestrator; left out: all, with rules thompson."
        ),
    ] = "",
    rejection_sample_methods: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Rules to compare: standard, block, coupled; left out: AUTO."
        ),
    ] = "",
    num_candidates: Annotated[int, typer.Option(min=1, help="Draft tokens per place.")] = 1,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens drafted ahead; left out: the server's.")
    ] = None,
    fixed_tokens: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Draft tokens per round of the pacing fixed, a configuration each; "
            "left out: --num-speculative-tokens, else 5.",
        ),
    ] = "",
    repeats: Annotated[int, typer.Option(min=1, help="How often each prompt is answered.")] = 3,
    concurrency: Annotated[
        str,
        typer.Option(metavar="A,B", help="Prompts at a time, 1 to 64; one table each."),
    ] = "1",
    peers: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Set beside: transformers, assisted (with --draft), lookup, vllm, vllm-ngram, "
            "llama.cpp.",
        ),
    ] = "",
    peer_cores: Annotated[
        str,
        typer.Option(metavar="A,B", help="Where they run: verifier (its cores), all, or both."),
    ] = "verifier",
    peer_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(
            help="Number format of peers; auto: for each the one that a short trial finds fastest."
        ),
    ] = "auto",
    vllm_python: Annotated[
        str | None, typer.Option(help="Python of an environment that holds vLLM.")
    ] = None,
    llama_server: Annotated[
        str | None, typer.Option(help="The command llama-server of llama.cpp.")
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME=VALUE,..",
            help="Run no model: plain_ms, verify_ms, draft_ms, agreement (0 to 1), or their file.",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(help="The same as a published trace has it: humaneval or refactorchat."),
    ] = None,
    delay_ms: Annotated[
        str,
        typer.Option(
            metavar="MS|ROLE=MS,..",
            help="Without a model: network delay each way, to verifier and drafter.",
        ),
    ] = "0",
    seen_before: Annotated[
        bool,
        typer.Option(
            "--seen-before",
            help="Measure text seen before: every prompt is answered once, all in one scope, "
            "before it counts. Left out: each trial finds nothing of those before it.",
        ),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(help="File of every finished trial: a later run goes on from there."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file; left out: a new one in bench/results.")
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(help="A second one without the trials, small enough for docs/results."),
    ] = None,
) -> None:
    """Measure plain decoding, pacings, drafters and peers on the same prompts, taking turns."""
    given = dict(locals())
    from bench.main import run_given

    raise typer.Exit(run_given(given))
