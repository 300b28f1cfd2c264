"""The asynchronous client of Paceline.

async with Client("127.0.0.1:50051") as client:
    async for event in client.generate("Once upon a time", max_tokens=64):
        if isinstance(event, Chunk):
            print(event.text, end="")

    generation = await client.generate(messages=[{"role": "user", "content": "Hi"}])
    print(generation.text, generation.speculation.block_efficiency)
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar, Unpack

import grpc

from paceline._channel import open_channel
from paceline._decode import decode_model_info, decode_server_info, decode_session
from paceline._request import Message, Options, build_request
from paceline._sessions import OpenSessions
from paceline.errors import from_rpc
from paceline.results import ModelInfo, ServerInfo, Session
from paceline.stream import GenerationStream
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

_T = TypeVar("_T")

# Calls that answer from what the server knows; a generation has no such limit.
_QUESTION_SECONDS = 30.0
_ABORT_SECONDS = 5.0


class Client:
    """A connection to one Paceline server, made when it is first used.

    Every method raises `paceline.PacelineError` or a subclass. `timeout` of a
    call is its deadline in seconds; left out it is the client's own, and without
    that a generation runs as long as the server lets it.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float | None = None,
        ca: bytes | None = None,
        cert: bytes | None = None,
        key: bytes | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        insecure: bool = False,
    ) -> None:
        """`address` is host:port.

        TLS is spoken when `ca` (PEM of the authority to trust), `cert` and `key`
        (PEM of the client's own certificate) or ready-made `credentials` are
        given. Plaintext beyond loopback needs `insecure`.
        """
        self._connect = open_channel(address, ca, cert, key, credentials, insecure)
        self._timeout = timeout
        self._channel: grpc.aio.Channel | None = None
        self._sessions = OpenSessions(self._abort_for_caller)
        self._closed = False

    # --- generations -----------------------------------------------------------

    def generate(
        self,
        prompt: str | None = None,
        *,
        tokens: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> GenerationStream:
        """Generate from a text, from token ids, or from a conversation.

        `request_id` becomes the session id; the same id with the same content
        attaches to the session there is. Raises InvalidArgument or TypeError at
        once for arguments that no server would take.
        """
        request = build_request(prompt, tokens, messages, request_id, options)
        return self._stream("Generate", request, request.request_id, timeout)

    def resume(
        self, session_id: str, offset: int = 0, *, timeout: float | None = None
    ) -> GenerationStream:
        """Go on with a session after its first `offset` tokens."""
        request = pb.ResumeRequest(session_id=session_id, offset=offset)
        return self._stream("Resume", request, session_id, timeout)

    async def abort(self, session_id: str, *, timeout: float | None = None) -> None:
        """End a session at once."""
        await self._ask("Abort", pb.AbortRequest(session_id=session_id), timeout)

    # --- questions -------------------------------------------------------------

    async def get_session(self, session_id: str, *, timeout: float | None = None) -> Session:
        """What the server knows of a session."""
        request = pb.GetSessionRequest(session_id=session_id)
        return decode_session(await self._ask("GetSession", request, timeout))

    async def model_info(self, *, timeout: float | None = None) -> ModelInfo:
        """The model that is served."""
        request = pb.GetModelInfoRequest()
        return decode_model_info(await self._ask("GetModelInfo", request, timeout))

    async def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """The server and its workers."""
        request = pb.GetServerInfoRequest()
        return decode_server_info(await self._ask("GetServerInfo", request, timeout))

    # --- the connection --------------------------------------------------------

    async def close(self) -> None:
        """Abort what is still streaming and end the connection. Idempotent."""
        if not self._closed:
            await self._sessions.leave_all()
        self._closed = True
        if self._channel is not None:
            await self._channel.close(None)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _stub(self) -> Any:
        # Made here, not in __init__, because a channel belongs to the running loop.
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._channel is None:
            self._channel = self._connect()
        return pb_grpc.InferenceServiceStub(self._channel)

    def _stream(
        self, method: str, request: Any, session_id: str, timeout: float | None
    ) -> GenerationStream:
        deadline = self._timeout if timeout is None else timeout

        def open_call() -> Any:
            return getattr(self._stub(), method)(request, timeout=deadline)

        return GenerationStream(open_call, session_id, self._sessions)

    async def _ask(self, method: str, request: Any, timeout: float | None) -> Any:
        limits = (timeout, self._timeout, _QUESTION_SECONDS)
        deadline = next(limit for limit in limits if limit is not None)
        return await _typed(getattr(self._stub(), method)(request, timeout=deadline))

    async def _abort_for_caller(self, session_id: str) -> None:
        await self.abort(session_id, timeout=_ABORT_SECONDS)


async def _typed(call: Awaitable[_T]) -> _T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error
