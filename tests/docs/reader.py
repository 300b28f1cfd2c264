"""Somebody who reads a page and types in each of its examples."""

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import yaml

from services.runtime.ports import free_port
from tests.docs import npm
from tests.docs.pages import ROOT, Block

PATIENCE = 240.0
"""Seconds for one example, on a busy machine."""

READY_MADE = "paceline up --target MODEL --port 50051"
"""A block that says this starts nothing: it is how the site's cluster was started."""

_PORT = re.compile(r"\b(?:50\d{3}|94\d\d)\b")
_SERVED = "50051"


@dataclass(frozen=True, slots=True)
class Site:
    """What the words of an example stand for where it is run."""

    address: str
    model: str
    redis: str


class Reader:
    """Types in the examples of one page, in their order, in a folder like a checkout.

    `MODEL` is the site's model, `127.0.0.1:50051` its cluster until the page starts servers
    of its own, which get free ports; `redis://127.0.0.1:6379` is its Redis.
    """

    def __init__(self, site: Site, folder: Path) -> None:
        self._site, self._folder = site, folder
        self._ports = {_SERVED: site.address.rpartition(":")[2]}
        self._servers: _Servers | None = None
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.close()
        wrong = self._end_servers()
        assert kind is not None or not wrong, wrong

    def run(self, block: Block) -> None:
        """Raises what goes wrong."""
        match block.info:
            case "python":
                self._type_in(block)
            case "sh":
                self._to_its_end(block)
            case "sh node":
                npm.packages()
                self._to_its_end(block)
            case "sh serves":
                self._serve(block)
            case "json":
                json.loads(block.text)
            case "yaml":
                list(yaml.safe_load_all(block.text))

    def _type_in(self, block: Block) -> None:
        lines = "\n" * block.line + self._meant(block.text)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(lines, str(block.page), "exec", flags, dont_inherit=True)
        with contextlib.chdir(self._folder), contextlib.redirect_stdout(io.StringIO()) as shown:
            if code.co_flags & inspect.CO_COROUTINE:
                self._runner.run(asyncio.wait_for(eval(code, self._names), PATIENCE))
            else:
                exec(code, self._names)
        assert shown.getvalue() or "print(" not in block.text, f"{block.place}: nothing was shown"

    def _to_its_end(self, block: Block) -> None:
        done = subprocess.run(
            self._command(block),
            cwd=self._folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
        said = f"{block.place}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, said

    def _serve(self, block: Block) -> None:
        wrong = self._end_servers()
        assert not wrong, wrong
        self._ports.clear()
        if block.text.strip() == READY_MADE:
            self._ports[_SERVED] = self._site.address.rpartition(":")[2]
            return
        command = self._command(block)
        log = self._folder / "servers.log"
        self._servers = _Servers(command, self._folder, self._environment(), log)
        self._servers.wait(int(self._port(_SERVED)))

    def _end_servers(self) -> str:
        servers, self._servers = self._servers, None
        return "" if servers is None else servers.end()

    def _command(self, block: Block) -> list[str]:
        return ["bash", "-euo", "pipefail", "-c", self._meant(block.text)]

    def _meant(self, text: str) -> str:
        text = text.replace("redis://127.0.0.1:6379", self._site.redis)
        text = re.sub(r"\bMODEL\b", self._site.model, text)
        return _PORT.sub(lambda found: self._port(found[0]), text)

    def _port(self, number: str) -> str:
        if number not in self._ports:
            self._ports[number] = str(free_port())
        return self._ports[number]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "PACELINE_" not in name}
        return {
            **kept,
            **npm.environment(),
            "PATH": f"{self._folder / '.venv' / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}",
        }


class _Servers:
    """What one block started, all in a process group of its own."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str], log: Path):
        self._log = log
        with log.open("w") as said:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, port: int) -> None:
        """Until somebody listens there."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                raise AssertionError(f"not serving, status {ended}:\n{self._log.read_text()}")
            time.sleep(0.1)

    def end(self) -> str:
        """End them; what was wrong with them until now, if anything."""
        ended = self._process.poll()
        if ended is not None:
            return f"ended with {ended}:\n{self._log.read_text()}"
        everything = psutil.Process(self._process.pid).children(recursive=True)
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(60)
        _, left = psutil.wait_procs(everything, timeout=60)
        for process in left:
            process.kill()
        return f"left behind: {left}" if left else ""
