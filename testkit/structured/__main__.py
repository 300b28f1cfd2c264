"""Structured output through drafts, rollbacks, resumes and dying verifiers, each answer checked.

    python -m testkit.structured        tiny random models, some minutes
    python -m testkit.structured --target smollm2-135m-instruct --draft smollm2-135m-instruct-eagle

Ten JSON schemas at temperature 1, drafted and verified in eight ways. Every generation is
broken off in the middle and resumed at another orchestrator; now and then a verifier is killed
or cut off. Each answer is read by `json` and checked by `jsonschema`; where its rule promises
the same text for a seed, it must equal plain decoding. Two orchestrators, two verifiers, a
drafter and a store, all real processes. The exit status is 1 if any check fails.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from bench.journal import Records
from bench.output import say, write_content
from services.contract.errors import StartError
from services.engine.checkpoint.heads import is_head
from testkit.chaos.health import whole
from testkit.chaos.models import tiny_models
from testkit.chaos.site import Cluster, Layout
from testkit.structured.generations import (
    HEAD_METHODS,
    HEAD_WAYS,
    METHODS,
    MODEL_WAYS,
    NGRAM_WAYS,
    Wanted,
    Way,
    wanted,
)
from testkit.structured.report import content, show
from testkit.structured.run import Disturbed, Ended, Struck, StructuredResult

WIRE_SECONDS = 0.005
"""To a verifier and back: without it the answers of tiny models are over at once."""


def main() -> int:
    """Run, print, and judge."""
    given = _parser().parse_args()
    began, outcome = time.monotonic(), StructuredResult()
    try:
        journal = _journal(given) if given.resume else None
        outcome.records += journal.known if journal else []
        with tempfile.TemporaryDirectory(prefix="paceline-forms-models-") as folder:
            models = (given.target, given.draft) if given.target else tiny_models(Path(folder))
            _run(given, models, outcome, journal)
    except StartError as error:
        print(f"testkit.structured: {error}", file=sys.stderr)
        return 1
    show(outcome)
    if given.json is not None:
        write_content(given.json, content(outcome, time.monotonic() - began))
    return 1 if outcome.wrong else 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--generations", type=int, default=500, help="how many in all")
    made.add_argument("--at-once", type=int, default=6, help="generations side by side")
    made.add_argument("--fault-every", type=int, default=15, help="generations between faults")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--target", default="", help="a model other than the tiny one")
    made.add_argument("--draft", default="", help="its draft model or head; left out: n-grams")
    made.add_argument("--resume", type=Path, default=None, help="a journal to write and go on with")
    made.add_argument("--json", type=Path, default=None, help="also write the report there")
    return made


def _journal(given: argparse.Namespace) -> Records[Ended | Struck]:
    settings = {"--target": given.target, "--draft": given.draft, "--seed": given.seed}
    return Records(given.resume, settings, TypeAdapter(Ended | Struck))


def _run(
    given: argparse.Namespace,
    models: tuple[str, str],
    outcome: StructuredResult,
    journal: Records[Ended | Struck] | None,
) -> None:
    """What the journal does not have yet; the outcome grows."""

    def note(record: Ended | Struck) -> None:
        outcome.records.append(record)
        if journal is not None:
            journal.add(record)

    known = {one.number for one in outcome.ended}
    numbers = [number for number in range(given.generations) if number not in known]
    ways, methods = _ways(models[1])
    every = [wanted(number, given.seed, ways) for number in numbers]
    if not every:
        return
    layout = Layout(*models, drafters=1, wire_seconds=WIRE_SECONDS, drafter_flags=methods)
    with Cluster(layout) as cluster:
        disturbed = Disturbed(cluster, given.seed, given.fault_every, note, say)
        asyncio.run(_on(cluster, disturbed, every, given.at_once, outcome))


def _ways(draft: str) -> tuple[Sequence[Way], tuple[str, ...]]:
    """How is drafted with that, and what a drafter has to be told."""
    if is_head(draft):
        return HEAD_WAYS, ("--method", HEAD_METHODS)
    return (MODEL_WAYS, ("--method", METHODS)) if draft else (NGRAM_WAYS, ())


async def _on(
    cluster: Cluster,
    disturbed: Disturbed,
    every: Sequence[Wanted],
    at_once: int,
    outcome: StructuredResult,
) -> None:
    """The run, once the cluster is whole."""
    await whole(cluster)
    say(f"{len(cluster.members)} processes and a store serve")
    outcome.violations += await disturbed.run(every, at_once)


if __name__ == "__main__":
    sys.exit(main())
