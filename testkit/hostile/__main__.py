"""The worst that one tenant can send, while sixteen sessions of another go on.

    python -m testkit.hostile --attack 60

Two orchestrators, one verifier of a tiny random model in float32, one drafter (n-grams, as
`paceline up` comes) and a store, the verifier behind a wire of 60 ms each way and with steps of
120 ms more than its model takes, as on a device of its own: two cores have room for all of it.
Who calls stands for machines of its own: the kernel lets good callers go first and hostile ones
last. The hostile
tenant may have four sessions and has 24 lanes, each sending one attack after another, some of
many calls at once. The exit status is 1 where good sessions lose more of their pace than
--pace-lost, where one of them stands still for longer than --gap, where a health check fails,
where a loop is late, where a process grows by half, or with the children that compile for it
beyond what its pod may have, where one ends, or where a good session fails.
"""

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from bench.machine import machine
from bench.output import say as say_of
from bench.output import table, table_console, write_content
from services.cluster.fresh import FRESH
from services.contract.errors import StartError
from services.runtime.affinity import give_way
from services.runtime.serving.bearer import token_entry
from testkit.chaos.__main__ import SAME_TEXT, cases
from testkit.chaos.health import whole
from testkit.chaos.models import LONGEST_TEXT, tiny_models
from testkit.chaos.site import ALWAYS_DRAFT, Cluster, Layout
from testkit.chaos.transcript import Case
from testkit.hostile.attacks import ATTACKS
from testkit.hostile.run import Bounds, Hostile, HostilePlan, HostileResult

PROCESSES = ("MiB before", "most", "times", "with children", "lag p99, ms ≤")
WIRE_SECONDS = 0.06
STEP_SECONDS = 0.12
WARM_STEPS = 1.25
"""Times the steps of a good session, before anything is measured."""
say = partial(say_of, program="testkit.hostile")
CALLERS_NICE = -10
POD_BYTES = {"orchestrator": 2 << 30, "verifier": 3 << 30, "drafter": 3 << 29}
"""What k8s/ allows each role: of its bases and of its component for CPUs the greater."""


def main() -> int:
    """Run, print, and judge."""
    given = _parser().parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-hostile-") as folder:
            outcome = _run(given, Path(folder))
    except StartError as error:
        print(f"testkit.hostile: {error}", file=sys.stderr)
        return 1
    _show(outcome)
    if given.json is not None:
        write_content(given.json, {"machine": machine(), "lost": outcome.lost, **asdict(outcome)})
    return 1 if outcome.violations else 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--attack", type=float, default=60.0, help="seconds of it")
    made.add_argument("--quiet", type=float, default=15.0, help="seconds before, and after")
    made.add_argument("--sessions", type=int, default=16, help="good ones at once")
    made.add_argument("--tokens", type=int, default=256, help="of each good session")
    made.add_argument("--lanes", type=int, default=24, help="hostile calls at once")
    made.add_argument("--kinds", nargs="+", choices=ATTACKS, default=[*ATTACKS], help="of attacks")
    made.add_argument(
        "--model-drafts", action="store_true", help="of a model, all the time: wants a core more"
    )
    made.add_argument("--pace-lost", type=float, default=0.15, help="the most that is borne")
    made.add_argument("--gap", type=float, default=1.0, help="seconds without tokens, at most")
    made.add_argument("--json", type=Path, default=None, help="also write the report there")
    return made


def _run(given: argparse.Namespace, folder: Path) -> HostileResult:
    good, bad = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({"tenants": _tenants(good, bad)}))
    target, draft = tiny_models(folder)
    drafts = ALWAYS_DRAFT if given.model_drafts else ()
    layout = Layout(
        target,
        draft if given.model_drafts else "",
        verifiers=1,
        drafters=1,
        wire_seconds=WIRE_SECONDS,
        step_seconds=STEP_SECONDS,
        metrics=True,
        token=good,
        orchestrator_flags=(*drafts, "--tokens-file", str(tokens)),
    )
    plan = HostilePlan(
        warm=WARM_STEPS * STEP_SECONDS * given.tokens,
        quiet=given.quiet,
        attack=given.attack,
        sessions=given.sessions,
        lanes=given.lanes,
        kinds=given.kinds,
    )
    bounds = Bounds(pace_lost=given.pace_lost, gap=given.gap, memory=POD_BYTES)
    with Cluster(layout) as cluster:
        hostile = Hostile(cluster, _cases(given.tokens), plan, bounds, bad, say)
        return asyncio.run(_attacked(hostile, cluster))


async def _attacked(hostile: Hostile, cluster: Cluster) -> HostileResult:
    await whole(cluster)
    # The wires and the good callers, threads of this process, stand for machines of their own.
    give_way(CALLERS_NICE)
    say(f"{len(cluster.members)} processes and a store serve")
    return await hostile.run()


def _tenants(good: str, bad: str) -> dict[str, object]:
    limits = {"max_sessions": 4, "max_tokens_in_flight": 3 * LONGEST_TEXT, "max_tokens": 1024}
    return {
        "good": {"tokens": [token_entry(good)]},
        "hostile": {"tokens": [token_entry(bad)], **limits},
    }


def _cases(tokens: int) -> list[Case]:
    """Greedy and sampled in turns; none answers faster for what others said before."""
    made = cases(tokens, SAME_TEXT)
    return [replace(case, options={**case.options, **FRESH}) for case in made]


def _show(outcome: HostileResult) -> None:
    console = table_console()
    title = f"good sessions, tokens/s: {outcome.quiet_before:.1f} before, "
    title += f"{outcome.attacked:.1f} under attack, {outcome.quiet_after:.1f} after: "
    console.print(title + f"{outcome.lost:.1%} lost, {outcome.gap:.2f} s at most without tokens")
    rows = [
        (
            reading.name,
            [
                f"{reading.before / 2**20:.0f}",
                f"{reading.most / 2**20:.0f}",
                f"{reading.growth:.2f}",
                f"{reading.family / 2**20:.0f}",
                f"{1e3 * reading.lag_p99:.0f}",
            ],
        )
        for reading in outcome.readings
    ]
    console.print(table("processes", PROCESSES, rows))
    ends = [
        (kind, [", ".join(f"{count} {end}" for end, count in sorted(found.items()))])
        for kind, found in sorted(outcome.ends.items())
    ]
    console.print(table("attacks", ("how their calls ended",), ends))
    print("\n".join(outcome.violations) or "Nobody else was harmed.")


if __name__ == "__main__":
    sys.exit(main())
