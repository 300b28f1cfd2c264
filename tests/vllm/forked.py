"""What asks vLLM, in a process forked from one that has read it: a process holds one vLLM."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.vllm.preloaded"])


def in_a_process(function: Callable[..., Answer], *arguments: object) -> Answer:
    """What the function of a module returns or raises there."""
    with _SERVER.Pool(1) as pool:
        return pool.apply(function, arguments)
