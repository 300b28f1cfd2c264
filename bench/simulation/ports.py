"""How the parts of a simulation speak to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from orchestrator.core.events import Event


class Deliver(Protocol):
    """Bring a worker's news to the orchestrator, over its link."""

    def __call__(self, session: str, kind: Callable[..., Event], /, *what: Any) -> None:
        """The session hears `kind(time of hearing, *what)`."""
