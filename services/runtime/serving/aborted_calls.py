"""An aborted call frees its memory at once.

gRPC keeps the exception that aborted a call with the call, the exception keeps its frames, and
the frames keep the call and its request. Only the garbage collector frees such a cycle; where
it runs seldom, messages of megabytes pile up.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class ReleaseAborted(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Wraps every method of a server and every other interceptor."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of a method, none of whose frames an abort keeps."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        methods = {kind: getattr(handler, kind) for kind in _KINDS}
        return handler._replace(
            **{kind: _around(method) for kind, method in methods.items() if method is not None}
        )


def _around(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):
        return _answering(method)
    return _streaming(method) if inspect.isasyncgenfunction(method) else method


def _answering(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        running = method(request, context)
        # The exception will hold this frame.
        del request, context
        try:
            return await running
        except grpc.aio.AbortError as error:
            raise _alone(error)  # noqa: B904

    return call


def _streaming(method: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        running = method(request, context)
        del request, context
        try:
            async for response in running:
                yield response
        except grpc.aio.AbortError as error:
            raise _alone(error)  # noqa: B904

    return call


def _alone(error: grpc.aio.AbortError) -> grpc.aio.AbortError:
    """The same error object, which gRPC expects, without its traceback, context and cause."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
