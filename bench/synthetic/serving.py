"""The cluster: synthetic workers, and one orchestrator for each way to decode."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.configurations import drafting_name
from bench.loop_floor.serving import served_floor
from bench.options import FIXED, NO_DRAFTS, PLAIN, RULES
from bench.runner import ORCHESTRATOR, Configuration
from bench.synthetic.traces import DRAFTED
from orchestrator.session.options import POLICIES
from services.cluster.specs import ClusterOptions, Site, orchestrator_specs, worker_specs
from services.cluster.supervisor import ProcessSpec, Supervisor
from services.contract.errors import StartError
from services.engine.synthetic.spec import SyntheticSpec
from services.runtime.affinity import available_cores
from services.runtime.embedded_redis import EmbeddedRedis

STOP_SECONDS = 30.0
"""For all processes together, one after another."""
STORE = "store"
AMUSD = "amusd"
"""`eager` that verifies whatever is there, always, as published (McDanel 2024)."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to decode: an orchestrator with these flags, asked with these options."""

    name: str
    flags: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True


def ways(pacings: Sequence[str], window: int | None = None, rules: Sequence[str] = ()) -> list[Way]:
    """Plain decoding, `fixed`, bare AMUSD and every other pacing, or those of `pacings` alone.

    `window`: most tokens drafted ahead, 5 in `fixed` and the server's number elsewhere if
    it is left out. Plain decoding and `fixed` are always there: they are compared with. Each
    pacing with each of `rules`, or the server's own. Raises StartError for an unknown name.
    """
    known = (FIXED, AMUSD, *(name for name in POLICIES if name != FIXED))
    for name in pacings:
        if name not in known:
            raise StartError(f"--pacings: {name!r} is not one of {', '.join(known)}")
    for rule in rules:
        if rule not in RULES:
            raise StartError(
                f"--rejection-sample-methods: {rule!r} is not one of {', '.join(RULES)}"
            )
    chosen = [name for name in known if not pacings or name in (FIXED, *pacings)]
    drafting = [_drafting(name, window, rule) for name in chosen for rule in rules or ("",)]
    return [Way(PLAIN, options=NO_DRAFTS), *drafting]


def _drafting(name: str, window: int | None, rule: str) -> Way:
    window = window or (DRAFTED if name == FIXED else None)
    flags = ["--pacing", "eager" if name == AMUSD else name]
    flags += ["--no-fallback"] if name in (FIXED, AMUSD) else []
    flags += ["--num-speculative-tokens", str(window)] if window else []
    options = {"rejection_sample_method": rule} if rule else {}
    return Way(drafting_name(name, rule), tuple(flags), options, rule in ("", "coupled"))


@asynccontextmanager
async def served(
    ways: Sequence[Way],
    spec: SyntheticSpec,
    change: Callable[[ProcessSpec], ProcessSpec],
    report: Callable[[str], None],
    protocol: int = 2,
) -> AsyncIterator[list[Configuration]]:
    """Start every process, as `change` wants it, and end them all on the way out.

    The last two are the least loop's. Raises StartError.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-bench-")))
        file = folder / "synthetic.json"
        file.write_text(spec.model_dump_json(by_alias=True))
        redis = await stack.enter_async_context(EmbeddedRedis(append_only=True))
        supervisor = Supervisor(report, grace=STOP_SECONDS)
        stack.push_async_callback(supervisor.stop)
        options = ClusterOptions(target="", synthetic=file, protocol=protocol)
        site = Site(os.getpid(), folder, redis.url, available_cores())
        workers = worker_specs(options, site)
        await supervisor.start([change(one) for one in workers])
        specs = [change(_orchestrator(way, options, site)) for way in ways]
        addresses = await supervisor.start(specs)
        pids = supervisor.pids
        store = {STORE: redis.pid} if redis.pid is not None else {}
        around = {one.name.partition("-")[0]: pids[one.name] for one in workers} | store
        ours = [
            Configuration(
                way.name,
                address,
                options=way.options,
                exact=way.exact,
                pids={ORCHESTRATOR: pids[one.name], **around},
                baseline=way.name.partition(",")[0] in (PLAIN, FIXED),
            )
            for way, one, address in zip(ways, specs, addresses, strict=True)
        ]
        floor = served_floor(supervisor, site, file, change, store)
        yield [*ours, *await stack.enter_async_context(floor)]


def _orchestrator(way: Way, options: ClusterOptions, site: Site) -> ProcessSpec:
    """An orchestrator of its own: what one way teaches it is no other's."""
    folder = site.folder / way.name
    folder.mkdir()
    [spec] = orchestrator_specs(options, replace(site, folder=folder))
    return replace(spec, name=f"orchestrator-{way.name}", argv=(*spec.argv, *way.flags))
