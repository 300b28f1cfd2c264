"""What is around every method of a server.

A request that cannot be parsed is its sender's fault. grpc.aio answers UNKNOWN and logs a
traceback; here the answer is INVALID_ARGUMENT, without a log line, so that callers cannot fill
the log.

An aborted call frees its memory at once. gRPC keeps the exception that aborted a call with the
call, the exception keeps its frames, and the frames keep the call and its request. Only the
garbage collector frees such a cycle; where it runs seldom, messages of megabytes pile up.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from services.contract.errors import ProtocolError
from services.runtime.serving.border import border

_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")

_Parse = Callable[[bytes], Any]


class _Unreadable:
    """Stands for a request that cannot be parsed."""


_UNREADABLE = _Unreadable()


class Calls(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Wraps every method of a server and every other interceptor."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of a method: it refuses what it cannot read, and an abort keeps no frame."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        [(kind, method)] = [(k, own) for k in _KINDS if (own := getattr(handler, k)) is not None]
        if inspect.iscoroutinefunction(method):
            changed: dict[str, Any] = {kind: _answering(method)}
        elif inspect.isasyncgenfunction(method):
            changed = {kind: _streaming(method)}
        else:
            return handler
        if (parse := handler.request_deserializer) is not None:
            raising = handler.request_streaming
            changed["request_deserializer"] = _raising(parse) if raising else _marking(parse)
        return handler._replace(**changed)


def _raising(parse: _Parse) -> _Parse:
    """For a stream, which is read inside its method."""

    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            raise _unreadable() from None

    return parsed


def _marking(parse: _Parse) -> _Parse:
    """For a single request, which is read before its method is called."""

    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return _UNREADABLE

    return parsed


def _answering(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        running = _refuse(context) if request is _UNREADABLE else method(request, context)
        # The exception will hold this frame.
        del request, context
        try:
            return await running
        except grpc.aio.AbortError as error:
            raise _alone(error)  # noqa: B904

    return call


def _streaming(method: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        refusal = _refuse(context) if request is _UNREADABLE else None
        running = method(request, context)
        del request, context
        try:
            if refusal is not None:
                await refusal
            async for response in running:
                yield response
        except grpc.aio.AbortError as error:
            raise _alone(error)  # noqa: B904

    return call


async def _refuse(context: Any) -> None:
    async with border(context):
        raise _unreadable()


def _unreadable() -> ProtocolError:
    return ProtocolError("the bytes of the request are no such message")


def _alone(error: grpc.aio.AbortError) -> grpc.aio.AbortError:
    """The same error object, which gRPC expects, without its traceback, context and cause."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
