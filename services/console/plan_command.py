"""The flags of `paceline plan`; what they start is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plan(
    source: Annotated[
        Path | None,
        typer.Option("--from", help="JSON of paceline bench; what is given beside it counts more."),
    ] = None,
    draft_ms: Annotated[float | None, typer.Option(help="One drafted token.")] = None,
    draft_session_ms: Annotated[
        float | None, typer.Option(help="Each further session in a drafting step; left out: 0.")
    ] = None,
    verify_ms: Annotated[
        float | None, typer.Option(help="A verify of a block, beside its rows.")
    ] = None,
    verify_row_ms: Annotated[
        float | None, typer.Option(help="Each draft token in it; left out: 0.")
    ] = None,
    verify_session_ms: Annotated[
        float | None, typer.Option(help="Each further session of a batch; left out: 0.")
    ] = None,
    verify_table: Annotated[
        str, typer.Option(metavar="ROWS:MS,...", help="In place of --verify-ms: by tokens in all.")
    ] = "",
    plain_ms: Annotated[
        float | None, typer.Option(help="A round of plain decoding; left out: --verify-ms.")
    ] = None,
    acceptance: Annotated[
        str, typer.Option(metavar="A,B", help="How often a draft token is right: one, or by place.")
    ] = "",
    hop_ms: Annotated[
        float | None, typer.Option(help="One way from orchestrator to worker; left out: 0.25.")
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(help="Sessions at a time on one verifier; left out: 1.")
    ] = None,
    pacing: Annotated[
        str, typer.Option(metavar="A,B", help="Pacings to plan with; left out: all.")
    ] = "",
    num_speculative_tokens: Annotated[int, typer.Option(help="Most tokens drafted ahead.")] = 16,
    tokens: Annotated[int, typer.Option(help="Tokens of each simulated answer.")] = 64,
    seed: Annotated[int, typer.Option(help="The same seed draws the same texts.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Foretell what speculation brings: milliseconds in, from flags or a bench; simulated."""
    given = dict(locals())
    # The bench stands above the command, so it is found by name.
    from bench.plan.main import run_plan
    from bench.plan.options import PlanOptions

    raise typer.Exit(run_plan(PlanOptions(**given)))
