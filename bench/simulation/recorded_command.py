"""`python -m bench.simulation --recorded FILE`: the default trees on texts that a target wrote."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.plan.options import table_of
from bench.simulation.flags import add_number, bare_table
from bench.simulation.recorded import FLAG, read_texts
from bench.simulation.round_kinds import RoundKind
from bench.simulation.scenario import StepTime
from bench.simulation.served import COSTS, SOURCES, VERIFY, Row, scenario_of, served, sources_of
from bench.simulation.tree_drafter import TreeDrafts
from services.cluster.models import DEMO_NGRAMS
from services.contract.errors import StartError
from services.engine.ngram_file import NO_FILE, NgramFile, load_ngrams, ngrams_path

LONGEST_MS = 10_000.0
COLUMNS = ("sources", "category", "tokens", "x plain")
HEADS = {
    RoundKind.DRAFT: "drafts",
    RoundKind.UNPAID: "unpaid",
    RoundKind.NOTHING: "nothing",
    RoundKind.LATE: "late",
    RoundKind.RESTED: "rested",
    RoundKind.LAST: "last",
}
BESIDE = ("nodes", "wait ms", "outside ms", "ideal tokens", "ideal x", "ideal nodes")
LEGEND = """
tokens: a verification. Of the rounds after the first, in which no draft can be:
drafts, unpaid: sent with a draft; nothing of the draft paid
nothing, late, rested, last: the drafter had nothing, was late, rested; it was the last token
nodes, wait ms, outside ms: of the mean round; waiting for a tree; all but the verifier's step
ideal: the same trees, no way to go, no wait, no rest, sizes by their own chances
"""


def add_flags(made: argparse.ArgumentParser) -> None:
    """Those that belong to `--recorded`."""
    group = made.add_argument_group("texts that a target wrote")
    about = "JSON lines of category, prompt and answer (token ids; `python -m research.answered`)"
    group.add_argument(FLAG, type=Path, default=None, metavar="FILE", help=about)
    about = f"the n-gram file, a name or a path; {NO_FILE}: none; left out: {DEMO_NGRAMS}"
    group.add_argument("--ngrams", default=DEMO_NGRAMS, help=about)
    about = f"of {','.join(SOURCES)}: this text; what a file says after one token; all of it"
    group.add_argument("--sources", default="", metavar="A,B", help=f"{about}; left out: all three")
    table = ",".join(f"{rows}:{ms:g}" for rows, ms in VERIFY.table)
    about = f"ms of a verification by rows, straight lines between; left out: {table}"
    group.add_argument("--verify-table", default=table, metavar="ROWS:MS,…", help=about)
    default = TreeDrafts(())
    for flag, value, about in (
        ("--hop-ms", COSTS.hop_ms, "one way between orchestrator and worker"),
        ("--jitter-ms", COSTS.jitter_ms, "the most that is added to a way"),
        ("--build-ms", default.build_ms, "a tree"),
        ("--cpu-ms", COSTS.cpu_ms, "what the orchestrator computes for an event"),
        ("--store-ms", COSTS.persist_ms, "what the store takes"),
    ):
        add_number(group, flag, value, about, 0, LONGEST_MS)
    add_number(group, "--depth", default.depth, "most levels of a tree", 1, 64)
    add_number(group, "--nodes", default.nodes, "most nodes of a tree", 1, 64)
    group.add_argument("--no-rests", action="store_true", help="the drafter never rests")


def show_recorded(given: argparse.Namespace, console: Console) -> object:
    """Simulate and print; what `--json` writes."""
    file = None if given.ngrams == NO_FILE else load_ngrams(ngrams_path(given.ngrams))
    names = _sources(given.sources, file)
    found = {name: _rows(given, sources_of(file, name)) for name in names}
    console.print(_table(found))
    console.print(LEGEND.strip())
    return {name: [asdict(row) for row in rows] for name, rows in found.items()}


def _rows(given: argparse.Namespace, file: NgramFile | None) -> list[Row]:
    texts = read_texts(given.recorded, file.vocab_size if file else 0)
    table = table_of("--verify-table", given.verify_table)
    scenario = replace(
        scenario_of(TreeDrafts(texts, file, given.build_ms, given.depth, given.nodes)),
        verify=StepTime(table[0][1], table=table),
        hop_ms=given.hop_ms,
        jitter_ms=given.jitter_ms,
        cpu_ms=given.cpu_ms,
        persist_ms=given.store_ms,
        fallback=not given.no_rests,
    )
    return served(scenario)


def _sources(text: str, file: NgramFile | None) -> Sequence[str]:
    """Those asked for; those that differ where none are named."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SOURCES:
            raise StartError(f"--sources: {name!r} is not one of {', '.join(SOURCES)}")
        if name != SOURCES[0] and file is None:
            raise StartError(f"--sources: {name} needs --ngrams")
    return names or (SOURCES if file else SOURCES[:1])


def _table(found: dict[str, list[Row]]) -> Table:
    table = bare_table([*COLUMNS, *HEADS.values(), *BESIDE])
    for name, rows in found.items():
        for row in rows:
            table.add_row(name, *_cells(row))
        table.add_section()
    return table


def _cells(row: Row) -> Iterable[str]:
    yield from (row.category, f"{row.tokens_a_round:.2f}", f"{row.speed_up:.2f}")
    yield from (f"{row.shares[kind.value]:.1%}" for kind in HEADS)
    yield from (f"{row.nodes:.1f}", f"{row.wait_ms:.2f}", f"{row.outside_ms:.2f}")
    yield from (f"{row.ideal_tokens_a_round:.2f}", f"{row.ideal_speed_up:.2f}")
    yield f"{row.ideal_nodes:.1f}"
