"""The event loop of a process, the signals that end it, and what is loaded beside it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its result, on uvloop where it is installed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; needs the running loop of the main thread.

    A second signal ends the process at once.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, _request_stop, stop, number)
    return stop


async def loaded(load: Callable[[], T], stop: asyncio.Event) -> T:
    """What `load` returns. It runs in a thread of its own, so that the loop answers probes.

    Raises what `load` raises. A process that is told to stop meanwhile ends at once, with
    status 0: it serves nobody yet, and a thread cannot be ended.
    """
    result: Future[T] = Future()
    threading.Thread(target=_fill, args=(result, load), name="loading", daemon=True).start()
    loading = asyncio.wrap_future(result)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((loading, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not loading.done():
        # Not by way of the interpreter's own end: it would free what the thread still uses.
        os._exit(0)
    return loading.result()


def _fill(result: Future[T], load: Callable[[], T]) -> None:
    try:
        result.set_result(load())
    except BaseException as error:
        result.set_exception(error)


def _request_stop(stop: asyncio.Event, number: signal.Signals) -> None:
    logger.info("%s: stopping; a second signal ends this process at once", number.name)
    stop.set()
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.remove_signal_handler(each)
        signal.signal(each, signal.SIG_DFL)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # an optional extra
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
