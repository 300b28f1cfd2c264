"""The `paceline` command. Each subcommand imports its parts when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cluster.models import DEMO_MODEL
from services.console.bench_command import BENCH_SECTIONS, bench
from services.console.distill_command import distill
from services.console.generate_command import GENERATE_SECTIONS, generate
from services.console.lookahead_command import train_lookahead
from services.console.model_flags import (
    DraftDtype,
    Dtype,
    Lookahead,
    Method,
    Ngrams,
    Pool,
    SkipMask,
    Target,
)
from services.console.ngrams_command import learn_ngrams
from services.console.plan_command import plan
from services.console.sections import sectioned
from services.console.token_command import token
from services.console.top_command import top
from services.console.trace_command import trace
from services.console.tune_command import tune_skip
from services.runtime.polling import poll_in_one_thread

app = typer.Typer(
    name="paceline",
    help="Large language models served faster, with the same output distribution.",
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


def main() -> None:
    """Run the command line."""
    poll_in_one_thread()
    try:
        app()
    except ModuleNotFoundError as error:
        from services.cluster.process import complain, not_here

        sys.exit(complain(sys.argv[1], not_here(error), status=1))


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
    from services.cluster.process import run_process

    raise typer.Exit(run_process(role, context.args))


@app.command(
    cls=sectioned(
        {
            "Models": (
                "target",
                "draft",
                "lookahead",
                "ngrams",
                "skip_mask",
                "dtype",
                "draft_dtype",
            ),
            "Drafting": ("method", "pool", "pacing"),
            "Processes": (
                "verifiers",
                "tensor_parallel",
                "drafters",
                "verifier_threads",
                "drafter_threads",
                "pin",
                "synthetic",
            ),
            "Serving": ("host", "port", "redis", "vllm_engine", "ready_file"),
        }
    )
)
def up(
    target: Target = "",
    draft: Annotated[
        str | None,
        typer.Option(envvar="PACELINE_DRAFT", help="Draft model; left out: n-gram drafters."),
    ] = None,
    lookahead: Lookahead = None,
    ngrams: Ngrams = None,
    skip_mask: SkipMask = None,
    method: Method = "",
    pool: Pool = None,
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
    tensor_parallel: Annotated[
        int,
        typer.Option(
            envvar="PACELINE_TENSOR_PARALLEL",
            min=1,
            help="Processes that the model of each verifier is split over.",
        ),
    ] = 1,
    drafters: Annotated[int, typer.Option(min=0, help="How many drafters.")] = 1,
    dtype: Annotated[
        Dtype, typer.Option(envvar="PACELINE_DTYPE", help="Number format of the models.")
    ] = "float32",
    draft_dtype: DraftDtype = None,
    verifier_threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads of each of a verifier's processes; left out: its share of the cores.",
        ),
    ] = None,
    drafter_threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of each drafter with a model; left out: one."),
    ] = None,
    pin: Annotated[bool, typer.Option(help="Keep each model on cores of its own.")] = True,
    pacing: Annotated[
        str,
        typer.Option(
            envvar="PACELINE_PACING", help="When to verify: thompson, matched, eager or fixed."
        ),
    ] = "",
    synthetic: Annotated[
        Path | None,
        typer.Option(help="Run no model: a JSON file says how long forwards take."),
    ] = None,
    vllm_engine: Annotated[
        bool,
        typer.Option(
            envvar="PACELINE_VLLM_ENGINE",
            help="Serve what gateways with an OpenAI API speak, too.",
        ),
    ] = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Gets the address as one line when the cluster serves."),
    ] = None,
) -> None:
    """Start a whole local cluster as separate processes, and keep it alive until Ctrl-C."""
    from services.cluster.specs import ClusterOptions
    from services.console.up import run_up

    options = ClusterOptions(
        target=target,
        draft=draft,
        lookahead=lookahead,
        ngrams=ngrams,
        skip_mask=skip_mask,
        method=method,
        pool=pool,
        host=host,
        port=port,
        redis=redis,
        verifiers=verifiers,
        tensor_parallel=tensor_parallel,
        drafters=drafters,
        dtype=dtype,
        draft_dtype=draft_dtype,
        verifier_threads=verifier_threads,
        drafter_threads=drafter_threads,
        pin=pin,
        pacings=(pacing,),
        synthetic=synthetic,
        vllm_engine=vllm_engine,
    )
    raise typer.Exit(run_up(options, ready_file))


app.command(cls=sectioned(GENERATE_SECTIONS))(generate)


@app.command()
def demo(
    target: Target = DEMO_MODEL,
    draft: Annotated[
        str, typer.Option(envvar="PACELINE_DRAFT", help="Draft model; empty: n-grams of the text.")
    ] = "",
    dtype: Annotated[
        Dtype, typer.Option(envvar="PACELINE_DTYPE", help="Number format of the models.")
    ] = "bfloat16",
) -> None:
    """Answer three prompts through a cluster of real processes, then end it."""
    from services.console.demo import DemoOptions, run_demo

    raise typer.Exit(run_demo(DemoOptions(target, draft or None, dtype)))


app.command(cls=sectioned(BENCH_SECTIONS))(bench)
app.command()(distill)
app.command(name="tune-skip")(tune_skip)
app.command()(train_lookahead)
app.command()(learn_ngrams)
app.command()(plan)
app.command()(trace)
app.command()(top)
app.command()(token)
