"""A child's side of the JSON lines; it and `tether` import the standard library alone."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from services.runtime.tether import die_with


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to answer; `top_p` 1 and `temperature` 0 are greedy decoding."""

    id: int
    way: str
    token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int


class Lines:
    """Standard input and output as JSON objects, one a line.

    Whatever else a library prints goes to standard error.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._lock = threading.Lock()
        os.dup2(2, 1)

    def settings(self) -> dict[str, Any]:
        """What to load: the first line."""
        given: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
        return given

    def requests(self) -> Iterator[Request]:
        """What to answer, until the input ends."""
        for line in sys.stdin:
            asked = json.loads(line)
            yield Request(**{**asked, "token_ids": tuple(asked["token_ids"])})

    def ready(self, about: str) -> None:
        """Everything is loaded."""
        self._write({"ready": about})

    def tokens(self, request: Request, token_ids: Sequence[int], drafted: int | None) -> None:
        """New tokens of an answer, of one verification where `drafted` is known."""
        self._write({"id": request.id, "token_ids": list(token_ids), "drafted": drafted})

    def end(self, request: Request, reason: str, cached: int = 0) -> None:
        """The answer is whole; `cached` of its prompt's tokens were found in a cache."""
        self._write({"id": request.id, "end": reason, "cached": cached})

    def fail(self, error: BaseException, request: Request | None = None) -> None:
        """It cannot be loaded, or this request cannot be answered."""
        text = " ".join(str(error).split())[:300]
        failure: dict[str, Any] = {"error": f"{type(error).__name__}: {text}"}
        self._write(failure if request is None else {"id": request.id, **failure})

    def _write(self, content: dict[str, Any]) -> None:
        with self._lock:
            self._out.write(json.dumps(content) + "\n")
            self._out.flush()


Answer = Callable[[Request], None]


def serve_in_turn(lines: Lines, load: Callable[[dict[str, Any]], tuple[str, Answer]]) -> int:
    """Load, then answer one request after the other; the exit status.

    `load` gives what it is, in words, and what answers.
    """
    try:
        settings = lines.settings()
        die_with(settings["tether"])
        about, answer = load(settings)
    except Exception as error:
        lines.fail(error)
        return 1
    lines.ready(about)
    for request in lines.requests():
        try:
            answer(request)
        except Exception as error:
            lines.fail(error, request)
    return 0
