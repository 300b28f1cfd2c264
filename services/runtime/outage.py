"""For how long a server has not done what it was asked."""

from __future__ import annotations

import time
from collections.abc import Callable


class Outage:
    """Told by the event loop; any thread may read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def begin(self) -> None:
        """It did not answer, or it refused; may be repeated while that lasts."""
        if self._since is None:
            self._since = self._clock()

    def end(self) -> None:
        """It did what it was asked, or nothing is asked of it any more; may be repeated."""
        self._since = None

    @property
    def seconds(self) -> float:
        """Since the first `begin`; 0 = it is there."""
        since = self._since
        return 0.0 if since is None else self._clock() - since
