"""The span of a call that goes on with a session."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from opentelemetry.trace import Span, Status, StatusCode

from services.contract.errors import PacelineError
from services.runtime.telemetry import names
from services.runtime.telemetry.propagation import format_traceparent, parent_context, span_context

T = TypeVar("T")


class Resuming:
    """From the call's arrival to its last event."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        """The parent of what the call begins; empty when there is no trace."""
        return format_traceparent(self._span.get_span_context())

    def joins(self, session: str) -> None:
        """The session runs already; `session` is the traceparent of its `Generate`."""
        generate = span_context(parent_context(session))
        if generate.is_valid:
            self._span.add_link(generate)

    def failed(self, error: BaseException) -> None:
        """It comes to no event; a caller that left meanwhile is a reason, too."""
        self._end(error)

    async def through(self, events: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """The events; the span ends with them."""
        error: PacelineError | None = None
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        except PacelineError as raised:
            error = raised
            raise
        finally:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            name = type(error).__name__
            self._span.set_attribute(names.ERROR_TYPE, name)
            self._span.set_status(Status(StatusCode.ERROR, name))
        self._span.end()
