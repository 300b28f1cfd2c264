"""A request that cannot be parsed is its sender's fault.

grpc.aio answers UNKNOWN and logs a traceback. Here the answer is INVALID_ARGUMENT,
without a log line, so that callers cannot fill the log.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from services.contract.errors import ProtocolError
from services.runtime.serving.border import border

_Parse = Callable[[bytes], Any]


class _Unreadable:
    """Stands for a request that cannot be parsed."""


_UNREADABLE = _Unreadable()


class Parsing(grpc.aio.ServerInterceptor):
    """Around every method of a server."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of a method, which refuses what it cannot read."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        if handler.request_streaming:
            return handler._replace(request_deserializer=_raising(handler.request_deserializer))
        parse = _marking(handler.request_deserializer)
        if handler.response_streaming:
            streaming = _streaming(handler.unary_stream)
            return handler._replace(request_deserializer=parse, unary_stream=streaming)
        return handler._replace(request_deserializer=parse, unary_unary=_unary(handler.unary_unary))


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


def _unary(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        await _require_readable(request, context)
        return await method(request, context)

    return call


def _streaming(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):
        return _unary(method)

    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        await _require_readable(request, context)
        async for response in method(request, context):
            yield response

    return call


async def _require_readable(request: Any, context: Any) -> None:
    if request is _UNREADABLE:
        async with border(context):
            raise _unreadable()


def _unreadable() -> ProtocolError:
    return ProtocolError("the bytes of the request are no such message")
