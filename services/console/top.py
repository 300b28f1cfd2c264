"""`paceline top`: what a cluster does now, from what its orchestrators say of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline import Client, PacelineError, ServerInfo, ServerTotals, WorkerInfo
from paceline._addresses import parse_addresses
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from services.cluster.flags import complain
from services.console.connection import Connection
from services.console.generate import INTERRUPTED
from services.contract.errors import StartError
from services.runtime.options import option, options

_ANSWER_SECONDS = 5.0
_NONE = "-"


@options
class TopOptions:
    """Which cluster, and how often to look."""

    connection: Connection
    every: float = option("Seconds between two looks.", 1.0, section="What is shown", ge=0.1)
    once: bool = option("Look twice, print what was between, end.", False)


@dataclass(frozen=True, slots=True)
class Look:
    """What every orchestrator said at one moment; `silent`: why some said nothing."""

    at: float
    infos: Mapping[str, ServerInfo] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)

    @property
    def workers(self) -> list[WorkerInfo]:
        """Every worker once: as an orchestrator that is connected to it sees it."""
        known: dict[str, WorkerInfo] = {}
        for info in self.infos.values():
            for worker in info.workers:
                if worker.connected or worker.worker_id not in known:
                    known[worker.worker_id] = worker
        return sorted(known.values(), key=lambda worker: (worker.role, worker.worker_id))


@dataclass(frozen=True, slots=True)
class Rates:
    """What one orchestrator did between two looks; acceptance is None where nothing was drafted."""

    tokens: float
    rounds: float
    efficiency: float | None
    acceptance: float | None

    @classmethod
    def between(cls, before: ServerTotals, after: ServerTotals, seconds: float) -> Rates | None:
        """None for an orchestrator that began anew meanwhile."""
        tokens = after.emitted_tokens - before.emitted_tokens
        rounds = after.target_steps - before.target_steps
        drafted = after.draft_tokens - before.draft_tokens
        accepted = after.accepted_tokens - before.accepted_tokens
        if min(tokens, rounds, drafted, accepted) < 0 or seconds <= 0:
            return None
        return cls(
            tokens / seconds,
            rounds / seconds,
            tokens / rounds if rounds else None,
            accepted / drafted if drafted else None,
        )


def run_top(options: TopOptions) -> int:
    """Watch; the exit status. 2 = a setting is not allowed; one line says why."""
    console = Console(highlight=False)
    try:
        asyncio.run(_watch(options, console))
    except (StartError, ValueError) as error:
        return complain("top", error, status=2)
    except PacelineError as error:
        return complain("top", error, status=1)
    except KeyboardInterrupt:
        return INTERRUPTED if options.once else 0
    return 0


async def _watch(options: TopOptions, console: Console) -> None:
    arguments = options.connection.arguments()
    addresses = parse_addresses(options.connection.addresses)
    # Each is asked by itself: what one says is not what another would.
    single = {"resume": False, "timeout": _ANSWER_SECONDS}
    clients = {at: Client(**{**arguments, **single, "address": at}) for at in addresses}
    try:
        before = await look(clients)
        if not before.infos:
            raise PacelineError(next(iter(before.silent.values())))
        if options.once:
            await asyncio.sleep(options.every)
            console.print(screen(before, await look(clients)))
            return
        with Live(screen(before, before), console=console, screen=console.is_terminal) as live:
            while True:
                await asyncio.sleep(options.every)
                now = await look(clients)
                live.update(screen(before, now), refresh=True)
                before = now
    finally:
        await asyncio.gather(*(client.close() for client in clients.values()))


async def look(clients: Mapping[str, Client]) -> Look:
    """Ask every orchestrator at once."""
    at = time.monotonic()
    answers = await asyncio.gather(*(_ask(client) for client in clients.values()))
    told = dict(zip(clients, answers, strict=True))
    return Look(
        at,
        {name: answer for name, answer in told.items() if isinstance(answer, ServerInfo)},
        {name: str(answer) for name, answer in told.items() if isinstance(answer, PacelineError)},
    )


async def _ask(client: Client) -> ServerInfo | PacelineError:
    try:
        return await client.server_info()
    except PacelineError as error:
        return error


def screen(before: Look, now: Look) -> RenderableType:
    """Orchestrators with what they did since `before`, then their workers."""
    return Group(_orchestrators(before, now), "", _workers(now.workers))


def _orchestrators(before: Look, now: Look) -> Table:
    columns = ("orchestrator", "version", "sessions", "tokens/s", "rounds/s", "efficiency", "kept")
    table = _table(columns)
    for name, info in now.infos.items():
        rates = _rates(before, now, name)
        table.add_row(name, info.version, str(info.active_sessions), *_told(rates))
    for name, why in now.silent.items():
        table.add_row(name, f"does not answer: {why}", style="red")
    return table


def _rates(before: Look, now: Look, name: str) -> Rates | None:
    then = before.infos.get(name)
    totals = now.infos[name].totals
    if then is None or then.totals is None or totals is None:
        return None
    return Rates.between(then.totals, totals, now.at - before.at)


def _told(rates: Rates | None) -> Sequence[str]:
    if rates is None:
        return [_NONE] * 4
    return (
        f"{rates.tokens:.1f}",
        f"{rates.rounds:.1f}",
        _NONE if rates.efficiency is None else f"{rates.efficiency:.2f}",
        _NONE if rates.acceptance is None else f"{rates.acceptance:.0%}",
    )


def _workers(workers: Sequence[WorkerInfo]) -> Table:
    table = _table(("worker", "role", "state", "sessions", "queued", "K/V", "step ms", "drafts"))
    for one in workers:
        share = (
            f"{one.kv_tokens_used / one.kv_tokens_capacity:.0%}"
            if one.kv_tokens_capacity
            else _NONE
        )
        table.add_row(
            one.worker_id,
            one.role,
            _state(one),
            str(one.sessions),
            str(one.queue_tokens),
            share,
            f"{one.step_ms:.1f}" if one.step_ms else _NONE,
            ",".join(one.methods) or _NONE,
            style="" if one.connected else "red",
        )
    return table


def _state(worker: WorkerInfo) -> str:
    if not worker.connected:
        return "away"
    return "drains" if worker.draining else "serves"


_WORDS = ("orchestrator", "version", "worker", "role", "state", "drafts")


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in _WORDS else "right")
    return table
