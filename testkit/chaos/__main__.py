"""Faults on a cluster of real processes under load, and a soak.

    python -m testkit.chaos --faults 500 --sessions 200     what must hold through faults
    python -m testkit.chaos --forms --sessions 500          answers with JSON schemas
    python -m testkit.chaos --soak 5000                     what short generations leave behind

Two verifiers, drafters and orchestrators and a store, each behind a proxy. With --store cluster
or sentinel the store is masters with a replica each, which fail over, and orchestrators wait for
--store-replicas of them. A quarter of the sessions is greedy, the others are sampled at 0.8: by
coupling, STANDARD and BLOCK. Greedy and coupled texts are compared with plain decoding before the
first fault; of the others every token that anybody heard with what the session has at last.
Without --target, tiny random models, and in float32 the texts of STANDARD and BLOCK must have the
target's exact distribution. With --batch-invariant verifiers compute in bfloat16, half of the
sessions is greedy and the other half coupled, and each token must be that of plain decoding; with
--dtype bfloat16 alone, to see what the mode is for, some are not. With --forms every session has
one of ten JSON schemas and is drafted and verified in one of eight ways; each is broken off in the
middle and resumed, read by `json` and checked by `jsonschema`. The exit status is 1 where anything
did not hold; the same --seed deals the same faults. Ctrl-C ends it with a report of what was seen.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bench.machine import machine
from bench.output import say as say_of
from bench.output import table, table_console, write_content
from bench.prompts import SPEC_BENCH, load_prompts
from services.contract.errors import StartError
from testkit.chaos.faults import KINDS, kinds_on
from testkit.chaos.forms import form_cases, ways_of
from testkit.chaos.health import whole
from testkit.chaos.models import tiny_models
from testkit.chaos.report import content, show
from testkit.chaos.run import Chaos, ChaosPlan, ChaosResult
from testkit.chaos.site import ALWAYS_DRAFT, Cluster, Layout
from testkit.chaos.soak import Soaked, soak
from testkit.chaos.store import ONE, TOPOLOGIES
from testkit.chaos.transcript import Case

PROMPT_LETTERS = 160
CASES = 24
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "rejection_sample_method": "standard"},
    {"temperature": 0.8},
    {"temperature": 0.8, "rejection_sample_method": "block"},
)
"""How sessions are sampled and verified, in turn."""
SAME_TEXT = WAYS[::2]
"""Those by which the text is that of plain decoding."""
DTYPES = FLOAT32, BFLOAT16 = ("float32", "bfloat16")
WIRE_SECONDS = 0.005
SOAK_TOKENS = 16
say = partial(say_of, program="testkit.chaos")
SOAK_KEEPS = ("--finished-ttl", "5")
"""Seconds that the store keeps a finished session in a soak, so that it does not fill up."""
SOAK_HOLDS = ("--prefix-cache-tokens", "4096")
"""Tokens of K/V that stay of ended texts: few enough for the warm-up to reach the bound."""


def main() -> int:
    """Run, print, and judge."""
    given = parser().parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-chaos-models-") as folder:
            target, draft = given.target, given.draft
            if not target:
                target, draft = tiny_models(Path(folder))
            return _soak(given, target, draft) if given.soak else _chaos(given, target, draft)
    except StartError as error:
        print(f"testkit.chaos: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--faults", type=int, default=25, help="how many")
    made.add_argument("--sessions", type=int, default=12, help="how many at least")
    made.add_argument("--at-once", type=int, default=8, help="sessions that run side by side")
    made.add_argument("--tokens", type=int, default=600, help="length of every session")
    made.add_argument("--seconds", type=float, default=3600.0, help="no fault after that")
    made.add_argument(
        "--kind",
        action="append",
        choices=tuple(KINDS),
        metavar="KIND",
        help=f"only this one, or these; left out: all of\n{', '.join(KINDS)}",
    )
    made.add_argument(
        "--forms", action="store_true", help="sessions whose answer has a JSON schema"
    )
    made.add_argument("--soak", type=int, default=0, help="so many generations, and no fault")
    made.add_argument(
        "--tls", action="store_true", help="mutual TLS on every connection but the store's"
    )
    made.add_argument(
        "--dtype", choices=DTYPES, help="number format of verifiers; left out: float32"
    )
    made.add_argument(
        "--batch-invariant",
        action="store_true",
        help="verifiers with that flag, in bfloat16 if --dtype does not say otherwise",
    )
    made.add_argument(
        "--store", choices=TOPOLOGIES, default=ONE, help="what Redis is: one server, a cluster, …"
    )
    made.add_argument(
        "--store-replicas",
        type=int,
        default=1,
        metavar="N",
        help="replicas that have a write before it counts, of a store that has them",
    )
    made.add_argument(
        "--store-program", type=Path, default=None, help="its server; left out: Valkey's wheel"
    )
    made.add_argument(
        "--grace",
        type=float,
        default=None,
        metavar="S",
        help="what every process drains for at most",
    )
    made.add_argument("--target", default="", help="a model other than the tiny one")
    made.add_argument("--draft", default="", help="what drafts for it; left out: n-grams")
    made.add_argument("--json", type=Path, default=None, help="also write the report there")
    return made


def cases(tokens: int, ways: Sequence[Mapping[str, Any]] = WAYS) -> list[Case]:
    """Different prompts; each of the ways in turn, with a seed."""
    prompts = load_prompts(SPEC_BENCH, CASES)
    ways = [ways[number % len(ways)] for number in range(len(prompts))]
    texts = [prompt.text for prompt in prompts]
    return [_case(number, *one, tokens) for number, one in enumerate(zip(texts, ways, strict=True))]


def _case(number: int, text: str, way: Mapping[str, Any], tokens: int) -> Case:
    fixed = {"max_tokens": tokens, "ignore_eos": True, "include_rounds": True}
    return Case(text[:PROMPT_LETTERS], {**way, "seed": 100 + number, **fixed})


def _chaos(given: argparse.Namespace, target: str, draft: str) -> int:
    bounds = given.faults, given.sessions, given.at_once, given.seconds
    plan = ChaosPlan(given.seed, *bounds, kinds=tuple(given.kind or ()))
    if unfit := set(plan.kinds) - set(kinds_on(given.store)):
        raise StartError(f"--store {given.store} has no {', '.join(sorted(unfit))}")
    with Cluster(_layout(given, target, draft)) as cluster:
        chaos = Chaos(cluster, _cases(given, draft), plan, say)
        outcome = asyncio.run(_on(cluster, _until_interrupted(chaos)))
    if not given.target and _dtype(given) == FLOAT32 and outcome.drawn:
        _judge_law(outcome, target, draft)
    show(plan, outcome)
    _write(given.json, content(plan, outcome))
    return 1 if outcome.violations else 0


def _cases(given: argparse.Namespace, draft: str) -> list[Case]:
    if given.forms:
        return form_cases(given.seed, ways_of(draft)[0])
    return cases(given.tokens, SAME_TEXT if given.batch_invariant else WAYS)


def computing(given: argparse.Namespace) -> tuple[str, ...]:
    """The flags of verifiers for how they compute."""
    invariant = ("--batch-invariant",) if given.batch_invariant else ()
    return ("--dtype", _dtype(given), *invariant)


def _dtype(given: argparse.Namespace) -> str:
    return given.dtype or (BFLOAT16 if given.batch_invariant else FLOAT32)


def _layout(given: argparse.Namespace, target: str, draft: str) -> Layout:
    grace = ("--grace", f"{given.grace:g}") if given.grace is not None else ()
    flags = (*ALWAYS_DRAFT, *grace)
    if given.store != ONE:
        flags += ("--store-replicas", str(given.store_replicas))
    return Layout(
        target,
        draft,
        wire_seconds=WIRE_SECONDS,
        tls=given.tls,
        store=given.store,
        store_program=given.store_program,
        verifier_flags=(*computing(given), *grace),
        drafter_flags=(*grace, *(ways_of(draft)[1] if given.forms else ())),
        orchestrator_flags=flags,
    )


def _judge_law(outcome: ChaosResult, target: str, draft: str) -> None:
    """Compare sampled texts with the distribution of models small enough to ask again."""
    from testkit.chaos.law import Models

    for fit in Models(target, draft).fit(outcome.drawn):
        outcome.law.append(str(fit))
        outcome.violations += [fit.complaint] if fit.complaint else []


def _soak(given: argparse.Namespace, target: str, draft: str) -> int:
    keeps = (*ALWAYS_DRAFT, *SOAK_KEEPS)
    layout = Layout(
        target,
        draft,
        tls=given.tls,
        verifier_flags=(*computing(given), *SOAK_HOLDS),
        orchestrator_flags=keeps,
    )
    with Cluster(layout) as cluster:
        work = soak(cluster, cases(SOAK_TOKENS), given.soak, given.at_once)
        soaked = asyncio.run(_on(cluster, work))
    _show_soak(soaked)
    _write(given.json, {"machine": machine(), **asdict(soaked)})
    return 1 if soaked.violations else 0


async def _until_interrupted(chaos: Chaos) -> ChaosResult:
    """The run; SIGINT ends the faults, and what was seen by then is reported."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, chaos.stop)
    return await chaos.run()


async def _on(cluster: Cluster, work: Any) -> Any:
    """The work, once the cluster is whole."""
    await whole(cluster)
    say(f"{len(cluster.members)} processes and a store serve")
    return await work


def _show_soak(soaked: Soaked) -> None:
    rows = [
        (
            growth.name,
            [
                f"{growth.before.memory / 2**20:.1f}",
                f"{growth.after.memory / 2**20:.1f}",
                f"{growth.share:+.1%}",
                f"{growth.before.sockets} → {growth.after.sockets}",
                f"{growth.before.files} → {growth.after.files}",
                f"{growth.before.threads} → {growth.after.threads}",
            ],
        )
        for growth in soaked.growths
    ]
    title = f"{soaked.generations} generations, {soaked.seconds:.0f} s"
    columns = ("MiB after a fifth", "MiB at the end", "growth", "sockets", "files", "threads")
    table_console().print(table(title, columns, rows))
    print("\n".join(soaked.violations) or "Nothing grew, nothing is left behind.")


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        write_content(path, report)


if __name__ == "__main__":
    sys.exit(main())
