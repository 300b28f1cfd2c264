"""llama.cpp's `llama-server`, asked over HTTP with token ids.

It runs the target's GGUF file as it is, in that file's own number format. Prompts are kept from
one request to the next only where text seen before is measured; all else is its default.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.peers.lines import Lines, Request, serve_in_turn
from services.runtime.embedded_redis import tied
from services.runtime.ports import free_port

_POLL_S = 0.1
_LONGEST_ANSWER_S = 3600.0


def command(settings: dict[str, Any], port: int) -> list[str]:
    """How the server is started: a context of the full length for each of its slots."""
    slots = settings["concurrency"]
    arguments = {
        "--model": settings["model"],
        "--host": "127.0.0.1",
        "--port": port,
        "--threads": settings["threads"],
        "--threads-batch": settings["threads"],
        "--parallel": slots,
        "--ctx-size": settings["max_context"] * slots,
    }
    if settings["ngram"]:
        arguments["--spec-type"] = "ngram-simple"
    program = shutil.which(settings["command"]) or settings["command"]
    # The server must not outlive this process, whatever ends it.
    command = tied(Path(program), settings["command"])
    return command + [str(one) for pair in arguments.items() for one in pair]


def start(settings: dict[str, Any]) -> tuple[subprocess.Popen[bytes], str]:
    """The server, once it serves, and its address. Raises RuntimeError when it ends before."""
    port = free_port()
    # Threads inherit the cores of the thread that starts them.
    os.sched_setaffinity(0, settings["cpus"])
    process = subprocess.Popen(command(settings, port), stdin=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    while not _healthy(address):
        if process.poll() is not None:
            raise RuntimeError(f"{settings['command']} ended with status {process.returncode}")
        time.sleep(_POLL_S)
    return process, address


def _healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def body(request: Request, *, prefix_caching: bool = False) -> dict[str, Any]:
    """The request in llama.cpp's words."""
    return {
        "prompt": list(request.token_ids),
        "n_predict": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "seed": request.seed,
        "stream": True,
        "return_tokens": True,
        "cache_prompt": prefix_caching,
    }


def answer(address: str, lines: Lines, request: Request, *, prefix_caching: bool = False) -> None:
    """One prompt, its tokens as they come."""
    reason, cached = "length", 0
    try:
        for event in _events(address, body(request, prefix_caching=prefix_caching)):
            if event.get("tokens"):
                lines.tokens(request, event["tokens"], None)
            if event.get("stop"):
                reason = "length" if event.get("stop_type") == "limit" else "stop"
                cached = event.get("timings", {}).get("cache_n", 0)
    except Exception as error:
        lines.fail(error, request)
    else:
        lines.end(request, reason, cached)


def _events(address: str, content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    asked = urllib.request.Request(
        f"{address}/completion",
        json.dumps(content).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=_LONGEST_ANSWER_S) as reply:
        for line in reply:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield json.loads(line[len(b"data: ") :])


def main() -> int:
    """Serve until standard input ends, then end the server."""
    lines, started = Lines(), list[subprocess.Popen[bytes]]()

    def load(settings: dict[str, Any]) -> tuple[str, Callable[[Request], None]]:
        process, address = start(settings)
        started.append(process)
        caching = {"prefix_caching": settings["prefix_caching"]}

        def beside(request: Request) -> None:
            asked = (address, lines, request)
            threading.Thread(target=answer, args=asked, kwargs=caching, daemon=True).start()

        return f"llama.cpp, {Path(settings['model']).name}", beside

    try:
        return serve_in_turn(lines, load)
    finally:
        for process in started:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
