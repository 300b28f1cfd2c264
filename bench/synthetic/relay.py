"""A relay that delays every byte by the same time, each way, and keeps their order.

It runs as a process of its own, with a thread for reading and one for writing each way of
each connection: neither the bench nor a busy connection makes a byte late. A byte is due
its delay after it was read, so what the threads take to wake hides behind the delay.

    python -m bench.synthetic.relay --delay-ms 5 --to-file FILE

FILE holds the address that connections are passed on to, once they come; the relay's own
address is its first line of output.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import threading
import time
from pathlib import Path
from queue import SimpleQueue

from services.engine.synthetic.pacemaker import without_timer_slack
from services.runtime.tether import die_with

_CHUNK = 1 << 16

Delivery = tuple[float, bytes]
"""When it is due, and what; nothing = the end."""


def relay(listener: socket.socket, to_file: Path, delay: float) -> None:
    """Pass connections on until the process ends; `delay` in seconds, each way."""
    while True:
        near, _ = listener.accept()
        try:
            host, _, port = to_file.read_text().strip().rpartition(":")
            far = socket.create_connection((host, int(port)))
        except (OSError, ValueError):
            near.close()
            continue
        join(near, far, delay)


def join(one: socket.socket, other: socket.socket, delay: float) -> None:
    """Pass on whatever comes, both ways, in threads of their own."""
    for source, sink in ((one, other), (other, one)):
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        queue: SimpleQueue[Delivery] = SimpleQueue()
        threading.Thread(target=_read, args=(source, queue, delay), daemon=True).start()
        threading.Thread(target=_write, args=(sink, queue), daemon=True).start()


def _read(source: socket.socket, queue: SimpleQueue[Delivery], delay: float) -> None:
    data = b"-"
    while data:
        try:
            data = source.recv(_CHUNK)
        except OSError:
            data = b""
        queue.put((time.perf_counter() + delay, data))


def _write(sink: socket.socket, queue: SimpleQueue[Delivery]) -> None:
    without_timer_slack()
    while True:
        due, data = queue.get()
        left = due - time.perf_counter()
        if left > 0:
            time.sleep(left)
        with contextlib.suppress(OSError):
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)


def main() -> None:
    """Serve until the process that started this one is gone."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--delay-ms", type=float, required=True)
    made.add_argument("--to-file", type=Path, required=True)
    made.add_argument("--tether", type=int, default=None)
    given = made.parse_args()
    if given.tether is not None:
        die_with(given.tether)
    listener = socket.create_server(("127.0.0.1", 0))
    print("{}:{}".format(*listener.getsockname()), flush=True)
    relay(listener, given.to_file, 1e-3 * given.delay_ms)


if __name__ == "__main__":
    main()
