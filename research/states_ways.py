"""Hidden states from verifier to drafter: through the orchestrator, or over a stream of their own.

    python -m research.states_ways --states 6144,12288,24576

Three processes with the link's own messages over gRPC on loopback, and nothing else in them: a
verifier that says verdicts, as many at a time as `--sessions`; an orchestrator that makes a
drafter's commits of them; a drafter that waits for a commit and its rows. *Through*: the rows are
in verdicts and commits, as they are served. *Direct*: the verifier has a stream to the drafter, and
verdicts and commits are without. CPU is of all threads of a process, a round; the delay is from the
verdict to the moment at which the drafter has both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGTERM
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from paceline.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc

from bench.cpu import cpu_seconds
from research.command import listed, measuring_parser, run, table
from services.runtime import serving
from services.runtime.readyfile import write_line
from testkit.child import child

PARTS = "drafter", "verifier", "orchestrator"
WAYS = "none", "through", "direct"
TOKENS = 3
"""Of a round."""
_SETTLE_S = 1.0
_STAMP = 8
_UNBOUNDED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
COLUMNS = {
    "states": "d", "way": "", "KiB a round": ".0f", "rounds": "d", "orchestrator ms": ".3f",
    "verifier ms": ".3f", "drafter ms": ".3f", "together ms": ".3f", "delay ms": ".2f",
}  # fmt: skip


def main() -> None:
    """Measure and print; or be one of the processes that are measured."""
    if len(sys.argv) > 1 and sys.argv[1] in PARTS:
        part, file, about = sys.argv[1:]
        begin = {"drafter": _drafter, "verifier": _verifier, "orchestrator": _orchestrator}[part]
        sys.exit(serving.run(begin(Path(file), argparse.Namespace(**json.loads(about)))))
    run(parser(), _measure, lambda report: table(COLUMNS, report["rows"]))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__)
    made.add_argument(
        "--states", type=listed(int), default=[6144, 12288, 24576], help="numbers in a row"
    )
    made.add_argument("--sessions", type=int, default=8, help="verdicts of a step")
    made.add_argument("--step-ms", type=float, default=40.0)
    made.add_argument("--seconds", type=float, default=5.0, help="measured, of each")
    made.add_argument("--repeats", type=int, default=3, help="of all that is compared, in turns")
    return made


def _measure(asked: argparse.Namespace) -> dict[str, Any]:
    wanted = [(0, "none"), *((states, way) for states in asked.states for way in WAYS[1:])]
    runs: dict[tuple[int, str], list[dict[str, float]]] = {one: [] for one in wanted}
    for _ in range(asked.repeats):
        for states, way in wanted:
            runs[states, way].append(measure(states, way, asked))
    rows = [
        {"states": states, "way": way, "KiB a round": TOKENS * states * 2 / 1024}
        | {name: median(one[name] for one in found) for name in found[0]}
        for (states, way), found in runs.items()
    ]
    return {"rows": rows}


def measure(states: int, way: str, asked: argparse.Namespace) -> dict[str, float]:
    """A run of three processes, from the moment that they have settled."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        pids = {}
        about = {"way": way, "bytes": TOKENS * states * 2, "folder": str(folder)}
        about |= {"sessions": asked.sessions, "step_s": asked.step_ms / 1e3}
        for part in PARTS:
            command = [sys.executable, "-m", "research.states_ways", part, str(folder / part)]
            process = stack.enter_context(
                child([*command, json.dumps(about)], folder / part, end=SIGTERM)
            )
            pids[part] = process.pid
        time.sleep(_SETTLE_S)
        before = {part: cpu_seconds(pid) or 0.0 for part, pid in pids.items()}
        first = _told(folder)
        time.sleep(asked.seconds)
        last = _told(folder)
        used = {part: (cpu_seconds(pid) or 0.0) - before[part] for part, pid in pids.items()}
    rounds = last["rounds"] - first["rounds"]
    if not rounds:
        raise SystemExit(f"{way}, {states} numbers a row: no round was whole in time")
    spent = {f"{part} ms": 1e3 * seconds / rounds for part, seconds in used.items()}
    delay = 1e3 * (last["delay"] - first["delay"]) / rounds
    return {"rounds": rounds, **spent, "together ms": sum(spent.values()), "delay ms": delay}


def _told(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "told").read_text())
    return found


# --- the processes ----------------------------------------------------------------------


async def _drafter(file: Path, about: argparse.Namespace) -> int:
    stop = serving.stop_on_signals()
    servicer = _Drafter(about.bytes > 0)
    server = grpc.aio.server(options=_UNBOUNDED)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    told = Path(about.folder) / "told"
    servicer.tell(told)
    write_line(file, f"127.0.0.1:{port}")
    while not stop.is_set():
        await asyncio.sleep(0.02)
        servicer.tell(told)
    await server.stop(None)
    return 0


class _Drafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Counts rounds of which it has the commit and the rows."""

    def __init__(self, awaits_rows: bool) -> None:
        self._awaits_rows = awaits_rows
        self._half: dict[tuple[str, int], float] = {}
        self._rounds, self._delay = 0, 0.0

    def tell(self, path: Path) -> None:
        """How many rounds there were, and the sum of their delays."""
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps({"rounds": self._rounds, "delay": self._delay}))
        beside.replace(path)

    async def Link(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802, ARG002
        """Of an orchestrator, or of a verifier's own stream."""
        async for request in requests:
            for command in request.commands:
                if command.HasField("states"):
                    self._have(command.states.session_id, command.states.position, None)
                else:
                    one = command.commit
                    whole = bool(one.states) or not self._awaits_rows
                    self._have(one.session_id, one.base_len, _stamp(one.top_rows), whole=whole)
        yield drafter_pb2.DrafterServiceLinkResponse()

    def _have(self, session: str, place: int, stamp: float | None, *, whole: bool = False) -> None:
        key = session, place
        if not whole and key not in self._half:
            self._half[key] = stamp or 0.0
            return
        began = stamp or self._half.pop(key, 0.0)
        self._half.pop(key, None)
        self._rounds, self._delay = self._rounds + 1, self._delay + time.monotonic() - began


def _stamp(bytes_: bytes) -> float:
    return int.from_bytes(bytes_[:_STAMP], "little") * 1e-9


async def _verifier(file: Path, about: argparse.Namespace) -> int:
    stop = serving.stop_on_signals()
    server = grpc.aio.server(options=_UNBOUNDED)
    servicer = _Verifier(about, (Path(about.folder) / "drafter").read_text().strip())
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    write_line(file, f"127.0.0.1:{port}")
    await stop.wait()
    await server.stop(None)
    return 0


class _Verifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Says a step's verdicts at fixed times."""

    def __init__(self, about: argparse.Namespace, drafter: str) -> None:
        self._about, self._drafter = about, drafter

    async def Link(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802, ARG002
        """Verdicts without end."""
        about = self._about
        rows = bytes(about.bytes)
        direct = None
        if about.way == "direct":
            channel = grpc.aio.insecure_channel(self._drafter, _UNBOUNDED)
            direct = drafter_pb2_grpc.DrafterServiceStub(channel).Link()
        began = time.monotonic()
        for step in range(1 << 30):
            await asyncio.sleep(max(0.0, began + step * about.step_s - time.monotonic()))
            place = step * TOKENS
            sessions = [f"session-{number}" for number in range(about.sessions)]
            stamp = time.monotonic_ns().to_bytes(_STAMP, "little")
            carried = rows if about.way == "through" else b""
            yield verifier_pb2.VerifierServiceLinkResponse(
                events=[
                    verifier_pb2.VerifierEvent(verdict=_verdict(session, place, stamp, carried))
                    for session in sessions
                ]
            )
            if direct is not None:
                await direct.write(
                    drafter_pb2.DrafterServiceLinkRequest(
                        commands=[
                            drafter_pb2.DrafterCommand(
                                states=drafter_pb2.DraftStates(
                                    session_id=session, epoch=1, position=place, states=rows
                                )
                            )
                            for session in sessions
                        ]
                    )
                )


def _verdict(session: str, place: int, stamp: bytes, rows: bytes) -> verifier_pb2.Verdict:
    return verifier_pb2.Verdict(
        session_id=session,
        epoch=1,
        round=place,
        base_len=place,
        token_ids=range(TOKENS),
        accepted=TOKENS - 1,
        top_rows=stamp,
        states=rows,
    )


async def _orchestrator(file: Path, about: argparse.Namespace) -> int:
    stop = serving.stop_on_signals()
    drafter, verifier = (
        (Path(about.folder) / part).read_text().strip() for part in ("drafter", "verifier")
    )
    beyond = grpc.aio.insecure_channel(drafter, _UNBOUNDED)
    behind = grpc.aio.insecure_channel(verifier, _UNBOUNDED)
    out = drafter_pb2_grpc.DrafterServiceStub(beyond).Link()
    into = verifier_pb2_grpc.VerifierServiceStub(behind).Link()
    await into.write(verifier_pb2.VerifierServiceLinkRequest())
    relaying = asyncio.create_task(_relay(into, out))
    write_line(file, "relays")
    await stop.wait()
    relaying.cancel()
    await beyond.close(None)
    await behind.close(None)
    return 0


async def _relay(into: Any, out: Any) -> None:
    """Make commits of verdicts."""
    async for response in into:
        commits = [_commit(event.verdict) for event in response.events]
        await out.write(drafter_pb2.DrafterServiceLinkRequest(commands=commits))


def _commit(verdict: verifier_pb2.Verdict) -> drafter_pb2.DrafterCommand:
    return drafter_pb2.DrafterCommand(
        commit=drafter_pb2.CommitDraft(
            session_id=verdict.session_id,
            epoch=verdict.epoch,
            base_len=verdict.base_len,
            token_ids=verdict.token_ids,
            top_rows=verdict.top_rows,
            states=verdict.states,
        )
    )


if __name__ == "__main__":
    main()
