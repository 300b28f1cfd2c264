"""The event loop of a process, and the signals that end it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` to its exit status, on uvloop where it is installed."""
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
