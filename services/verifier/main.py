"""A verifier process: settings → engine → core → host → served, registered."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from services.contract.types import Role, StepTime
from services.engine import start
from services.engine.lending import Lending
from services.engine.port import Engine
from services.engine.spec import ModelSpec
from services.engine.structure import Structures, structures_of
from services.grammar.vetting import vetting_of
from services.runtime.host import Outlet, WorkerHost
from services.runtime.proposer import Proposer
from services.runtime.serving import Served
from services.runtime.telemetry import StepTracer
from services.runtime.worker_main import run_worker, tracing
from services.scheduling.draft_budget import DraftBudget
from services.verifier.measuring import measured
from services.verifier.options import VerifierOptions
from services.verifier.running.core import RunningCore
from services.verifier.settings import VerifierSettings
from services.verifier.warming import warm_up

if TYPE_CHECKING:
    from services.engine.start import Ranks

VerifierHost = WorkerHost[Any, Any]


def run(settings: VerifierSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit status (1 = the engine failed).

    Raises `StartError` when it cannot start.
    """
    machines = settings.machines()
    if machines.here:
        return start.follow(settings.tensor_parallel, machines)
    with (
        tracing(settings, Role.VERIFIER) as tracer,
        start.ranks(settings.tensor_parallel, settings.cpus, machines) as others,
    ):

        def load() -> list[Served]:
            engine = _engine(settings, others)
            times = step_times(settings, engine)
            host = make_host(settings, engine, times, tracer)
            tracer.watch({"verifier": host.progress})
            return [serving(host, engine, times)]

        own = settings if others is None else settings.model_copy(update={"cpus": others.cpus})
        return run_worker(own, tracer, load)


def load_engine(settings: VerifierSettings, others: Ranks | None = None) -> Engine:
    """The target's engine, with the settings' threads; warm on a device. Raises `StartError`."""
    engine = start.load(_model_spec(settings), others)
    if settings.device != "cpu":
        warm_up(engine)
    return engine


def step_times(settings: VerifierSettings, engine: Engine) -> tuple[StepTime, ...]:
    """How long its steps take, measured now; nothing where no model runs."""
    return () if settings.synthetic is not None else measured(engine)


def serving(host: VerifierHost, engine: Engine, times: tuple[StepTime, ...]) -> Served:
    """What the host serves; `times`: what was measured of its steps."""
    return Served(host, host.describe(), engine.bundle, times)


def make_host(
    settings: VerifierSettings,
    engine: Engine,
    times: tuple[StepTime, ...] = (),
    tracer: StepTracer | None = None,
    lending: Lending | None = None,
    structures: Structures | None = None,
    proposer: Proposer | None = None,
) -> VerifierHost:
    """The host of a core on `engine`, not started.

    `times`: what was measured of its steps. `proposer`: what drafts for it in its own thread;
    `lending`: where that finds the K/V of the sessions. `structures`: what compiles response
    formats; left out: what the engine has.
    """
    structures = structures or structures_of(engine, vetting_of(settings))
    options = VerifierOptions(
        max_step_tokens=settings.max_step_tokens,
        target_step_ms=settings.target_step_ms,
        prefill_slowdown=settings.prefill_slowdown,
        prefix_cache_tokens=settings.prefix_cache_tokens,
        version=version("paceline"),
        lending=lending,
        structures=structures,
        on_step=tracer.on_step("verifier") if tracer is not None else None,
        on_preempt=tracer.on_preempt() if tracer is not None else None,
        on_states=tracer.on_states("verifier") if tracer is not None else None,
        on_choices=tracer.on_choices(engine.model_id, engine.dtype) if tracer is not None else None,
    )

    def make_core(emit: Outlet) -> RunningCore:
        return RunningCore(
            engine,
            emit=emit,
            worker_id=settings.worker_id,
            options=options,
            pacing=DraftBudget(times),
            proposer=proposer,
            absorb=emit.absorb,
        )

    host: VerifierHost = WorkerHost(make_core, on_states=options.on_states)
    if structures is not None:
        structures.wake = host.wake
    return host


def _engine(settings: VerifierSettings, others: Ranks | None) -> Engine:
    if settings.synthetic is not None:
        return start.synthetic(
            settings.synthetic,
            Role.VERIFIER,
            threads=settings.threads,
            kv_capacity_tokens=settings.kv_capacity_tokens,
        )
    return load_engine(settings, others)


def _model_spec(settings: VerifierSettings) -> ModelSpec:
    return ModelSpec(
        model=settings.target,
        dtype=start.chosen_format(settings.dtype, settings.device, settings.engine),
        device=settings.device,
        threads=settings.threads,
        kv_capacity_tokens=settings.kv_capacity_tokens,
        max_context=settings.max_context,
        cache_dir=settings.cache_dir,
        tensor_parallel=settings.tensor_parallel,
        engine=settings.engine,
        memory_share=settings.memory_share,
        execution=settings.execution,
        batch_invariant=settings.batch_invariant,
    )
