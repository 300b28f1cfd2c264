"""A peer's child process, asked over its standard input and output.

It is stopped while it is not asked: spinning threads (vLLM's spin for a second after an
answer) would take cores from the next measurement.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from paceline import Method

from bench.peers.answers import PeerAnswer
from services.cluster.figures import Measured
from services.cluster.supervisor import last_line
from services.contract.errors import StartError
from services.runtime.tasks import end

REPOSITORY = Path(__file__).parents[2]
_GRACE_S = 15.0
_LONGEST_LINE = 1 << 24


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """How to start one child: its module under an interpreter, and what it is to load.

    `ways`: the peers that it answers for; `exact`: they should write what we do.
    """

    name: str
    python: str
    module: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    ways: Mapping[str, str] = field(default_factory=dict)
    """By the names of their configurations."""
    exact: bool = False

    @property
    def dtype(self) -> str:
        """Its number format."""
        return str(self.settings["dtype"])

    @property
    def argv(self) -> tuple[str, ...]:
        """The command. -P: what lies in the current folder must not be imported."""
        return (self.python, "-P", "-m", self.module)

    @property
    def environment(self) -> dict[str, str]:
        """Ours, with our modules to be found: another environment does not hold them."""
        paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class PeerProcess:
    """One child that serves."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.about = ""
        self._process = process
        self._log = log
        self._ids = count(1)
        self._answers: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def load(self, settings: Mapping[str, Any]) -> None:
        """Wait until it serves. Raises StartError with its own words when it cannot."""
        self._send({"tether": os.getpid(), **settings})
        said = await self._read()
        if said is None or "ready" not in said:
            reason = (said or {}).get("error") or last_line(self._log) or "it ended without a word"
            raise StartError(f"--peers: {self.name} did not start: {reason}")
        self.about = said["ready"]
        self._signal(signal.SIGSTOP)
        self._reader = asyncio.create_task(self._hand_out(), name=f"read {self.name}")

    async def answer(
        self, way: str, token_ids: Sequence[int], options: Mapping[str, Any]
    ) -> Measured:
        """One answer. Raises StartError when the child fails."""
        id = next(self._ids)
        seed = int(options.get("seed", 0))
        rule = Method.STANDARD if options["temperature"] else Method.GREEDY
        gathered = PeerAnswer(id, len(token_ids), seed, rule)
        lines = self._answers[id] = asyncio.Queue()
        if self._reader is None or self._reader.done():
            lines.put_nowait(None)
        asked = {name: options[name] for name in ("max_tokens", "temperature", "top_p")}
        self._signal(signal.SIGCONT)
        began = time.perf_counter()
        self._send({"id": id, "way": way, "token_ids": list(token_ids), "seed": seed, **asked})
        try:
            while (line := await lines.get()) and "token_ids" in line:
                now = time.perf_counter() - began
                gathered.add(now, line["token_ids"], line["drafted"])
        finally:
            del self._answers[id]
            if not self._answers:
                self._signal(signal.SIGSTOP)
        if line is None or "error" in line:
            reason = line["error"] if line else last_line(self._log)
            raise StartError(f"{self.name} failed: {reason}")
        return gathered.finish(time.perf_counter() - began, line["end"], line.get("cached", 0))

    async def stop(self) -> None:
        """End its input, which ends it; kill it and its children if it takes too long.

        One that is not ready yet reads no input.
        """
        self._signal(signal.SIGCONT)
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _GRACE_S if self.about else 0.0)
        self._signal(signal.SIGKILL)
        await self._process.wait()
        if self._reader is not None:
            await end(self._reader)

    def _signal(self, number: signal.Signals) -> None:
        """To it and to what it started: it is its own process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _send(self, content: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(content).encode() + b"\n")

    async def _read(self) -> dict[str, Any] | None:
        """The next line; None when the child has ended."""
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
            said: dict[str, Any] | None = json.loads(line) if line else None
        except ValueError:
            return {"error": "it does not speak JSON lines"}
        return said

    async def _hand_out(self) -> None:
        while said := await self._read():
            waiting = self._answers.get(said.get("id", 0))
            if waiting is not None:
                waiting.put_nowait(said)
        for waiting in self._answers.values():
            waiting.put_nowait(None)


@asynccontextmanager
async def peer_process(spec: PeerSpec, folder: Path) -> AsyncIterator[PeerProcess]:
    """Start a child, wait until it serves, end it on the way out. Raises StartError."""
    log = folder / f"{spec.name.replace(' ', '-')}.log"
    try:
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=spec.environment,
                limit=_LONGEST_LINE,
                start_new_session=True,  # Ctrl-C reaches the bench alone
            )
    except OSError as error:
        raise StartError(
            f"--peers: {spec.name} did not start: {spec.python}: {error.strerror}"
        ) from None
    peer = PeerProcess(spec.name, process, log)
    try:
        await peer.load(spec.settings)
        yield peer
    finally:
        await peer.stop()
