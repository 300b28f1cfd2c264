"""The `paceline` command. Each subcommand imports its parts when it runs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Literal

import typer

from services.console.distill_command import distill
from services.console.models import DEMO_DRAFT, DEMO_MODEL

app = typer.Typer(
    name="paceline",
    help="Large language models served faster, with not one token's law changed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# The process commands take their flags from their settings, `--help` included.
_OWN_FLAGS = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}

Dtype = Literal["float32", "bfloat16"]
Target = Annotated[
    str,
    typer.Option(
        envvar="PACELINE_TARGET",
        help="Target model: Hugging Face id, folder with safetensors, .gguf file, "
        f"or {DEMO_MODEL}.",
    ),
]
DraftDtype = Annotated[
    Dtype | None,
    typer.Option(
        envvar="PACELINE_DRAFT_DTYPE", help="Number format of the draft model; left out: --dtype."
    ),
]
Address = Annotated[
    str, typer.Option(envvar="PACELINE_ADDRESS", help="HOST:PORT of an orchestrator.")
]
Temperature = Annotated[
    float | None, typer.Option(help="0 = greedy; left out: the model's default.")
]


def main() -> None:
    """Run the command line."""
    app()


@app.command(context_settings=_OWN_FLAGS, short_help="Run one orchestrator (serves clients).")
def orchestrator(context: typer.Context) -> None:
    """Run one orchestrator."""
    _run_process("orchestrator", context)


@app.command(context_settings=_OWN_FLAGS, short_help="Run one drafter (proposes tokens).")
def drafter(context: typer.Context) -> None:
    """Run one drafter."""
    _run_process("drafter", context)


@app.command(context_settings=_OWN_FLAGS, short_help="Run one verifier (the target model).")
def verifier(context: typer.Context) -> None:
    """Run one verifier."""
    _run_process("verifier", context)


def _run_process(role: str, context: typer.Context) -> None:
    from services.console.process import run_process

    raise typer.Exit(run_process(role, context.args))


@app.command()
def up(
    target: Target,
    draft: Annotated[
        str | None,
        typer.Option(envvar="PACELINE_DRAFT", help="Draft model; left out: n-gram drafters."),
    ] = None,
    method: Annotated[
        str, typer.Option(envvar="PACELINE_METHOD", help="Drafting method (ngram, model).")
    ] = "",
    host: Annotated[str, typer.Option(envvar="PACELINE_HOST", help="Where to listen.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int,
        typer.Option(envvar="PACELINE_PORT", min=0, max=65535, help="0 picks a free one."),
    ] = 50051,
    redis: Annotated[
        str | None,
        typer.Option(envvar="PACELINE_REDIS", help="URL of a Redis; left out: one of its own."),
    ] = None,
    verifiers: Annotated[int, typer.Option(min=1, help="How many verifiers.")] = 1,
    drafters: Annotated[int, typer.Option(min=0, help="How many drafters.")] = 1,
    dtype: Annotated[
        Dtype, typer.Option(envvar="PACELINE_DTYPE", help="Number format of the models.")
    ] = "float32",
    draft_dtype: DraftDtype = None,
    verifier_threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of each verifier; left out: its share of the cores."),
    ] = None,
    drafter_threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of each drafter with a model; left out: one."),
    ] = None,
    pin: Annotated[bool, typer.Option(help="Keep each model on cores of its own.")] = True,
    pacing: Annotated[
        str,
        typer.Option(envvar="PACELINE_PACING", help="When to verify: eager or fixed."),
    ] = "",
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Gets the address as one line when the cluster serves."),
    ] = None,
) -> None:
    """Start a whole local cluster as separate processes, and keep it alive until Ctrl-C."""
    from services.console.cluster import ClusterOptions
    from services.console.up import run_up

    options = ClusterOptions(
        target=target,
        draft=draft,
        method=method,
        host=host,
        port=port,
        redis=redis,
        verifiers=verifiers,
        drafters=drafters,
        dtype=dtype,
        draft_dtype=draft_dtype,
        verifier_threads=verifier_threads,
        drafter_threads=drafter_threads,
        pin=pin,
        pacings=(pacing,),
    )
    raise typer.Exit(run_up(options, ready_file))


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to say to the model.")],
    address: Address,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    temperature: Temperature = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens, up to this.")] = (
        None
    ),
    top_k: Annotated[int | None, typer.Option(help="Keep this many likeliest tokens.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Keep tokens at least this likely, against the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divides the scores of tokens seen before.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Lowers a token by each time it was generated.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Lowers a token once it was generated.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Do not stop before this many.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Go on after the end-of-text token.")] = False,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; repeatable.")] = (
        None
    ),
    method: Annotated[str | None, typer.Option(help="Drafting method.")] = None,
    rejection_sample_method: Annotated[
        str | None, typer.Option(help="Verification rule: auto, coupled, standard or block.")
    ] = None,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(help="Most tokens drafted ahead.")
    ] = None,
    num_candidates: Annotated[
        int | None, typer.Option(help="Draft this many candidates per position.")
    ] = None,
    no_speculation: Annotated[bool, typer.Option(help="Plain decoding.")] = False,
    raw: Annotated[bool, typer.Option(help="Send the prompt as it is, not as a message.")] = False,
    system: Annotated[str, typer.Option(help="System message of the conversation.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event.")] = False,
) -> None:
    """Generate text: streamed as it is committed, with a summary at the end."""
    from services.console.generate import GenerateOptions, run_generate

    given = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "min_tokens": min_tokens,
        "ignore_eos": ignore_eos or None,
        "seed": seed,
        "stop": stop,
        "method": method,
        "rejection_sample_method": rejection_sample_method,
        "num_speculative_tokens": num_speculative_tokens,
        "num_candidates": num_candidates,
        "disable_speculative_decoding": no_speculation or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    asked = GenerateOptions(address, prompt, raw, system, as_json, options)
    raise typer.Exit(run_generate(asked))


@app.command()
def demo(
    target: Target = DEMO_MODEL,
    draft: Annotated[
        str, typer.Option(envvar="PACELINE_DRAFT", help="Draft model; empty: n-grams of the text.")
    ] = DEMO_DRAFT,
    dtype: Annotated[
        Dtype, typer.Option(envvar="PACELINE_DTYPE", help="Number format of the models.")
    ] = "bfloat16",
) -> None:
    """Answer three prompts through a cluster of real processes, then end it."""
    from services.console.demo import DemoOptions, run_demo

    raise typer.Exit(run_demo(DemoOptions(target, draft or None, dtype)))


@app.command()
def bench(
    target: Target = DEMO_MODEL,
    draft: Annotated[str | None, typer.Option(help="Draft model; left out: n-grams.")] = None,
    method: Annotated[str, typer.Option(help="Drafting method (ngram, model).")] = "",
    dtype: Annotated[Dtype, typer.Option(help="Number format of the models.")] = "float32",
    draft_dtype: DraftDtype = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines as Spec-Bench has them; left out: its own.")
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="How many of them.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of each answer.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 = greedy.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Keep the likeliest tokens, up to this.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first repeat's answers.")] = 1,
    pacings: Annotated[
        str, typer.Option(metavar="A,B", help="fixed, eager; left out: both, with rules eager.")
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
    repeats: Annotated[int, typer.Option(min=1, help="How often each prompt is answered.")] = 3,
    concurrency: Annotated[int, typer.Option(min=1, help="Prompts at a time.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="JSON file; left out: a new one in bench/results.")
    ] = None,
) -> None:
    """Measure plain decoding, pacings and rejection rules on the same prompts, taking turns."""
    given = dict(locals())
    for name in ("pacings", "rejection_sample_methods"):
        given[name] = tuple(one.strip() for one in given[name].split(",") if one.strip()) or None
    if prompts is None:
        del given["prompts"]
    # The bench stands above the command, so it is found by name.
    module = importlib.import_module("bench.main")
    raise typer.Exit(module.run_bench(module.BenchOptions(**given)))


app.command()(distill)
