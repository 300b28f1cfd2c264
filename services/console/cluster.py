"""What processes make a local cluster, and how each is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.console.cores import plan_cores
from services.console.models import is_distilled
from services.console.supervisor import ProcessSpec


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A whole cluster on one machine.

    `draft` None and `method` empty: n-gram drafters. `redis` None: a server of its
    own. `draft_dtype` None: the target's. Threads None: as many as the process has
    cores; else the process is not pinned. One orchestrator for each of `pacings`
    (empty: its default); the first listens on `port`, the others on free ones.
    """

    target: str
    draft: str | None = None
    method: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    redis: str | None = None
    verifiers: int = 1
    drafters: int = 1
    dtype: str = "float32"
    draft_dtype: str | None = None
    verifier_threads: int | None = None
    drafter_threads: int | None = None
    pin: bool = True
    pacings: tuple[str, ...] = ("",)

    @property
    def drafts_with_a_model(self) -> bool:
        """Whether drafters run a model, and so need a core of their own."""
        return self.draft is not None


@dataclass(frozen=True, slots=True)
class Site:
    """Where the processes of a cluster run: who owns them, their folder, store and cores."""

    owner: int
    folder: Path
    redis: str
    cores: tuple[int, ...]


def worker_specs(options: ClusterOptions, site: Site) -> list[ProcessSpec]:
    """The verifiers and drafters."""
    with_model = options.drafters if options.drafts_with_a_model else 0
    plan = plan_cores(site.cores, options.verifiers, with_model)
    verifiers = [
        _verifier(options, site, index, cores) for index, cores in enumerate(plan.verifiers, 1)
    ]
    homes = plan.drafters or ((),) * options.drafters
    drafters = [_drafter(options, site, index, cores) for index, cores in enumerate(homes, 1)]
    return verifiers + drafters


def orchestrator_specs(options: ClusterOptions, site: Site) -> list[ProcessSpec]:
    """The orchestrators; they find the workers in the store's registry."""
    ports = (options.port,) + (0,) * (len(options.pacings) - 1)
    return [
        _orchestrator(options, site, pacing, port)
        for pacing, port in zip(options.pacings, ports, strict=True)
    ]


def _orchestrator(options: ClusterOptions, site: Site, pacing: str, port: int) -> ProcessSpec:
    name = "orchestrator" if len(options.pacings) == 1 else f"orchestrator-{pacing}"
    arguments = ["--host", options.host, "--port", str(port)]
    if pacing:
        arguments += ["--pacing", pacing]
    return _spec(site, "orchestrator", name, arguments)


def _verifier(options: ClusterOptions, site: Site, index: int, cores: Sequence[int]) -> ProcessSpec:
    name = f"verifier-{index}"
    arguments = ["--worker-id", name, "--port", "0"]
    arguments += ["--target", options.target, "--dtype", options.dtype]
    arguments += _thread_flags(cores, options.verifier_threads, options.pin)
    return _spec(site, "verifier", name, arguments)


def _drafter(options: ClusterOptions, site: Site, index: int, cores: Sequence[int]) -> ProcessSpec:
    name = f"drafter-{index}"
    arguments = ["--worker-id", name, "--port", "0"]
    if options.method:
        arguments += ["--method", options.method]
    if options.draft is not None:
        arguments += ["--draft", options.draft, "--dtype", options.draft_dtype or options.dtype]
        if is_distilled(options.draft):
            # So that a drafter of another target is refused at the start.
            arguments += ["--draft-base", options.target]
        arguments += _thread_flags(cores, options.drafter_threads, options.pin)
    return _spec(site, "drafter", name, arguments)


def _thread_flags(cores: Sequence[int], threads: int | None, pin: bool) -> list[str]:
    """One thread per core, on those cores; a number of threads asked for goes unpinned."""
    if threads is not None:
        return ["--threads", str(threads)]
    pinned = ["--cpus", ",".join(str(core) for core in cores)] if pin else []
    return ["--threads", str(len(cores)), *pinned]


def _spec(site: Site, role: str, name: str, arguments: Sequence[str]) -> ProcessSpec:
    ready = site.folder / f"{name}.ready"
    common = ["--redis", site.redis, "--ready-file", str(ready), "--tether", str(site.owner)]
    return ProcessSpec(
        name=name,
        # -P: a folder named like one of our packages must not be imported from here.
        argv=(sys.executable, "-P", "-m", "paceline", role, *arguments, *common),
        ready_file=ready,
        log_file=site.folder / f"{name}.log",
    )
