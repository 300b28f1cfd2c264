"""The asynchronous client of Paceline.

async with Client("127.0.0.1:50051") as client:
    async for event in client.generate("Once upon a time", max_tokens=64):
        if isinstance(event, Chunk):
            print(event.text, end="")

    generation = await client.generate(messages=[{"role": "user", "content": "Hi"}])
    print(generation.text, generation.speculation.block_efficiency)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack, overload

import grpc

from paceline._addresses import parse_addresses
from paceline._attempts import Attempts, Limits
from paceline._channel import authorization, channel_credentials, channel_options, require_local
from paceline._decode import decode_model_info, decode_scores, decode_server_info, decode_session
from paceline._request import Message, Options, build_request, build_score_request
from paceline._servers import Server, Servers
from paceline._sessions import OpenSessions
from paceline.completions import Completions
from paceline.results import ModelInfo, Scores, ServerInfo, Session
from paceline.stream import GenerationStream
from paceline.v1 import inference_pb2 as pb

# Calls that answer from what the server knows; a generation has no such limit.
_QUESTION_SECONDS = 30.0
_ABORT_SECONDS = 5.0
_SCORE_SECONDS = 300.0


class Client:
    """A connection to one Paceline cluster, made when it is first used.

    Every method raises `paceline.PacelineError` or a subclass. `timeout` of a
    call is its deadline in seconds, all attempts together; left out it is the
    client's own, and without that a generation runs as long as the server lets it.

    With several addresses, calls go to one server until it fails, then to the
    next. A generation whose connection or server breaks goes on by itself: its
    caller sees only a pause, the tokens once each, one `Started`, one `Complete`.
    It is given up, with the last error, when `patience` seconds after a break no
    token has come. What is an answer rather than a break is raised at once:
    InvalidArgument, NotFound, FailedPrecondition, Aborted (a later resume took the
    session over), DataLoss and the like, ResourceExhausted to a first call, and an
    Internal of the server's own.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        timeout: float | None = None,
        token: str | None = None,
        ca: bytes | None = None,
        cert: bytes | None = None,
        key: bytes | None = None,
        server_name: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        insecure: bool = False,
        resume: bool = True,
        patience: float = 60.0,
        silence: float = 10.0,
    ) -> None:
        """`address` is host:port or another target of gRPC, or several of them.

        Several are a sequence or joined by commas. `token` goes with every call.
        TLS is spoken when `ca` (PEM of the authority to trust), `cert` and `key`
        (PEM of the client's own certificate) or ready-made `credentials` are
        given; `server_name` is the name to find in the server's certificate when it
        is not the address's. Plaintext beyond loopback, which shows the token to
        the network, needs `insecure`.

        `resume=False` raises what breaks a generation instead of going on. A server
        from which nothing at all comes for `silence` seconds (10 or more) counts as
        broken, sooner when it leaves a ping unanswered for four tenths of them; so
        does one that takes longer to connect. A connection that was idle is
        looked after only once a call uses it. Raises ValueError.
        """
        addresses = parse_addresses(address)
        secured = channel_credentials(ca, cert, key, credentials, server_name)
        if secured is None and not insecure:
            require_local(addresses)
        options, metadata = channel_options(silence, server_name), authorization(token)
        self._servers = Servers([Server(at, secured, options, metadata) for at in addresses])
        self._timeout = timeout
        self._patience = patience if resume else 0.0
        self._sessions = OpenSessions(self._abort_for_caller)
        self._closed = False

    # --- generations -----------------------------------------------------------

    @overload
    def generate(
        self,
        prompt: str | None = None,
        *,
        n: None = None,
        tokens: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> GenerationStream: ...

    @overload
    def generate(
        self,
        prompt: str | None = None,
        *,
        n: int,
        tokens: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completions: ...

    def generate(
        self,
        prompt: str | None = None,
        *,
        n: int | None = None,
        tokens: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> GenerationStream | Completions:
        """Generate from a text, from token ids, or from a conversation.

        With `n`, so many completions of it at once: completion i has the seed + i, and the text
        of a single request with that seed.

        `request_id` becomes the session id; the same id with the same content
        attaches to the session there is. Raises InvalidArgument or TypeError at
        once for arguments that no server would take.
        """
        request = build_request(prompt, tokens, messages, request_id, options, n)
        if n is None:
            return self._stream(request, timeout)
        return Completions(self._servers, request, self._limits(timeout), self._sessions)

    def resume(
        self,
        session_id: str,
        offset: int = 0,
        *,
        prefix_hash: int | None = None,
        timeout: float | None = None,
    ) -> GenerationStream:
        """Go on with a session after its first `offset` tokens.

        `prefix_hash` is the `extend_hash` of those tokens: a server whose text begins otherwise
        raises DataLoss. Without it nobody compares.
        """
        request = pb.ResumeRequest(session_id=session_id, offset=offset, prefix_hash=prefix_hash)
        return self._stream(request, timeout)

    async def abort(self, session_id: str, *, timeout: float | None = None) -> None:
        """End a session at once."""
        await self._ask("Abort", pb.AbortRequest(session_id=session_id), timeout)

    async def score(
        self,
        context: str | None = None,
        continuations: Sequence[str | Sequence[int]] = (),
        *,
        tokens: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        logprobs: int | None = None,
        ephemeral: bool = False,
        timeout: float | None = None,
    ) -> Scores:
        """How likely continuations of a text, of token ids or of a conversation are.

        Continuations are texts, or token ids. Texts are split as evaluation harnesses do it: a
        continuation's tokens are those of both texts together without as many as the context's
        alone. `logprobs` is the number of alternatives to report with each token.
        """
        options = {"logprobs": logprobs, "ephemeral": ephemeral}
        request = build_score_request(context, tokens, messages, continuations, options)
        limit = timeout or self._timeout or _SCORE_SECONDS
        return decode_scores(await self._ask("Score", request, limit))

    # --- questions -------------------------------------------------------------

    async def get_session(
        self,
        session_id: str,
        *,
        rounds: bool = False,
        offset: int = 0,
        timeout: float | None = None,
    ) -> Session:
        """What the server knows of a session; it goes on undisturbed.

        With `rounds` also the rounds that begin at or after an output `offset`, as many as are
        kept.
        """
        request = pb.GetSessionRequest(session_id=session_id, include_rounds=rounds, offset=offset)
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
        await self._servers.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _stream(
        self, first: pb.GenerateRequest | pb.ResumeRequest, timeout: float | None
    ) -> GenerationStream:
        attempts = Attempts(self._servers, first, *self._limits(timeout))
        return GenerationStream(attempts, self._sessions)

    def _limits(self, timeout: float | None) -> Limits:
        return self._patience, self._timeout if timeout is None else timeout

    async def _ask(self, method: str, request: Any, timeout: float | None) -> Any:
        limits = (timeout, self._timeout, _QUESTION_SECONDS)
        limit = next(limit for limit in limits if limit is not None)
        return await self._servers.ask(method, request, limit)

    async def _abort_for_caller(self, session_id: str) -> None:
        await self.abort(session_id, timeout=_ABORT_SECONDS)
