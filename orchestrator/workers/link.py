"""One link: a worker's description, then batches of commands out and events in.

A link never resends anything. When it breaks, the worker has dropped its sessions,
and their owners open them elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from paceline.worker.v1.verifier_pb2 import VerifierServiceGetTokenizerRequest

from orchestrator.workers.detector import Detector
from orchestrator.workers.openings import Openings
from orchestrator.workers.placed import Placed
from services.contract.errors import ProtocolError, StartError
from services.contract.frames import DraftFrame, Grants, StepFrame
from services.contract.states import Fate, OnStates, state_bytes
from services.contract.types import (
    PROTOCOL,
    Draining,
    LinkHello,
    Progress,
    Role,
    TokenizerBundle,
    WorkerDescription,
)
from services.contract.wire import (
    decode_description,
    gather_parts,
    join_bundle,
)
from services.contract.worker_messages import (
    DrafterCommand,
    DrafterEvent,
    EndSession,
    SessionGone,
    SessionStarted,
    StartDraft,
    StartVerify,
    VerifierCommand,
    VerifierEvent,
)
from services.runtime.awake import AwakeClock
from services.runtime.serving import Dialing
from services.runtime.serving.dialing import Metadata
from services.runtime.serving.rpcs import RPCS
from services.runtime.state_room import StateRoom, portion
from services.runtime.tasks import end
from services.scheduling.kv_reserve import reserve_of

log = logging.getLogger(__name__)

Command = DrafterCommand | VerifierCommand
WorkerEvent = DrafterEvent | VerifierEvent
DESCRIBE_TIMEOUT = 5.0
TOKENIZER_TIMEOUT = 60.0
CHECK_EVERY = 0.25
FIRST_RETRY = 0.1
LONGEST_RETRY = 2.0
STATE_PORTION = 4 << 20
"""Bytes of states that leave together; what needs none waits for no more than these."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """When a worker counts as stalled, and how much may wait for it.

    `silence`: seconds without any message, more for a peer with long usual gaps (`Detector`);
    `engine_stall`: seconds without an engine step while work is queued, in one turn of its
    core, or with an unread command; `outbox`: most commands that wait to be sent, where one for
    many sessions counts as one for each;
    `states`: bytes of the target's states among them, beyond which commands go without.
    """

    silence: float = 2.0
    engine_stall: float = 15.0
    outbox: int = 65_536
    states: int = 64 << 20


class WorkerLink:
    """The link to the worker at one address; connects again until it is closed.

    What leaves in one turn of the loop leaves together, frames behind the rest.
    `on_up(link)` is called when the worker has described itself and the stream is
    open; it may refuse the worker by raising StartError. `on_event(link, event)`
    gets what concerns sessions, and that the worker drains. `on_down(link)`: the
    sessions are lost.
    """

    def __init__(
        self,
        address: str,
        role: Role,
        orchestrator_id: str,
        *,
        on_up: Callable[[WorkerLink], Awaitable[None]],
        on_event: Callable[[WorkerLink, Any], None],
        on_down: Callable[[WorkerLink, str], None],
        limits: LinkLimits | None = None,
        dialing: Dialing | None = None,
        awake: AwakeClock | None = None,
        on_states: OnStates | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`awake`: the clock of this process; the caller of `check` beats it, by `clock`.

        `on_states` is told of states that are sent and dropped.
        """
        self.address = address
        self.role = role
        self.description: WorkerDescription | None = None
        self.progress = Progress()
        self.draining = False
        self.up = False
        # Sessions, by handle.
        self.assigned: set[int] = set()
        self.placed = Placed()
        # Among equal workers, and whether the worker is beyond this orchestrator's subset.
        self.order, self.visit = 0, False
        self.problem = ""
        # Whether the last end came of a message that no correct worker sends.
        self.faulty = False
        self._rpcs = RPCS[role]
        self._hello = LinkHello(orchestrator_id)
        self._on_up, self._on_event, self._on_down = on_up, on_event, on_down
        self._limits = limits or LinkLimits()
        self._dialing = dialing or Dialing()
        self._outbox: list[Command] = []
        self._waiting = 0
        self._on_states = on_states
        self._state_room = StateRoom(self._limits.states, on_states)
        self._wake = asyncio.Event()
        self._clock = clock
        self._awake = awake or AwakeClock(CHECK_EVERY, clock())
        self._detector = Detector(self._limits.silence)
        self._openings = Openings()
        self._moved_at = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def worker_id(self) -> str:
        """The worker's own name; its address until it has one."""
        return self.description.worker_id if self.description else self.address

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._run(), name=f"link {self.address}")

    async def close(self) -> None:
        """End the link; the worker frees its sessions."""
        if self._task is not None:
            await end(self._task)

    def send(self, command: Command) -> None:
        """Queue a command; those of one turn of the loop leave together.

        A worker that does not read is cut off when the queue is full.
        """
        if not self.up:
            return
        if self._waiting >= self._limits.outbox:
            self.cut("it does not read its commands")
            return
        admitted = self._state_room.admit(command)
        if admitted is None:
            return
        self._outbox.append(admitted)
        self._waiting += _size(admitted)
        self._wake.set()
        self._note(command)

    def _note(self, command: Command) -> None:
        """What a command makes of the sessions that are placed there."""
        match command:
            case StepFrame() | DraftFrame() | Grants():
                pass  # Most commands.
            case StartVerify() | StartDraft():
                tokens = len(command.prompt) + len(command.output)
                self._openings.send(command.handle, tokens, self._now)
                most = len(command.prompt) + command.sampling.max_tokens
                self.placed.add(command.handle, reserve_of(tokens, command.window, most))
            case EndSession(handle):
                self._forget(handle)

    def _forget(self, handle: int) -> None:
        self._openings.forget(handle)
        self.placed.drop(handle)

    def opening_s(self, tokens: int) -> float:
        """Expected seconds to open a session with a text of so many tokens."""
        return self._openings.expected(tokens, self.progress.queued_tokens)

    @property
    def stuck_s(self) -> float:
        """For how long the worker has been silent, or has left a command unread."""
        return max(self._detector.silent(self._now), 1e-3 * self.progress.stuck_ms)

    def check(self) -> None:
        """Cut the link off if the worker is stalled."""
        if self.up and (reason := self._stalled(self._now)):
            self.cut(reason)

    def _stalled(self, now: float) -> str:
        """Why the worker counts as stalled; empty while it does not."""
        if silence := self._detector.judge(now, self._awake.missed):
            return silence
        told, most = self.progress, self._limits.engine_stall
        if told.queued_tokens and now - self._moved_at > most:
            return f"no engine step for {now - self._moved_at:.1f} s with work queued"
        if told.oldest_command_ms > 1e3 * most:
            return f"a command has waited there for {told.oldest_command_ms / 1e3:.1f} s"
        if told.turn_ms > 1e3 * most:
            return f"its engine has not come out of a step for {told.turn_ms / 1e3:.1f} s"
        return ""

    @property
    def _now(self) -> float:
        """Seconds for which this process could listen."""
        return self._awake.at(self._clock())

    async def fetch_tokenizer(self) -> TokenizerBundle:
        """The verifier's tokenizer, template and generation config."""
        async with self._channel() as channel:
            parts = self._rpcs.stub(channel).GetTokenizer(
                VerifierServiceGetTokenizerRequest(),
                timeout=TOKENIZER_TIMEOUT,
                metadata=self._metadata(),
            )
            return join_bundle(await gather_parts(_readable(m).part async for m in parts))

    # --- connecting -----------------------------------------------------------------

    def _channel(self) -> grpc.aio.Channel:
        return self._dialing.channel(self.address)

    def _metadata(self) -> Metadata:
        return self._dialing.metadata(self.address)

    async def _run(self) -> None:
        pause = FIRST_RETRY
        while True:
            try:
                await self._connect_once()
                pause = FIRST_RETRY
            except (grpc.aio.AioRpcError, ProtocolError, StartError) as error:
                self._report(_reason(error))
            except asyncio.CancelledError:
                # A call that `cut` cancelled reads the same; only the task's own end counts.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
            except Exception:
                log.exception("link to the %s at %s failed", self.role.value, self.address)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY)

    async def _connect_once(self) -> None:
        async with self._channel() as channel:
            self.description = await self._describe(channel)
            call = self._rpcs.stub(channel).Link(metadata=self._metadata())
            await call.write(self._rpcs.codec.encode_request(hello=self._hello))
            await self._serve(call)

    async def _describe(self, channel: grpc.aio.Channel) -> WorkerDescription:
        try:
            response = await self._rpcs.stub(channel).Describe(
                self._rpcs.describe(), timeout=DESCRIBE_TIMEOUT, metadata=self._metadata()
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                stranger = f"no {self.role.value} of protocol {PROTOCOL} serves there"
                raise StartError(stranger) from None
            raise
        description = decode_description(_readable(response).worker)
        _check(description, self.role)
        return description

    async def _serve(self, call: Any) -> None:
        self._outbox.clear()
        self._waiting = 0
        self._state_room = StateRoom(self._limits.states, self._on_states)
        self._call = call
        self._openings.clear()
        self.placed = Placed()
        self._moved_at = self._now
        self._detector.begin(self._moved_at, self._awake.missed)
        self.progress, self.draining, self.up = Progress(), False, True
        self.faulty = False
        writer = asyncio.create_task(self._write(call), name=f"writer {self.address}")
        try:
            await self._on_up(self)
            self.problem = ""
            await self._read(call)
        except (ProtocolError, StartError) as error:
            self.faulty = isinstance(error, ProtocolError)
            self._report(str(error))
            raise
        finally:
            self.up = False
            writer.cancel()
            call.cancel()
            self._on_down(self, self.problem or "the link broke")

    async def _write(self, call: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                batch, self._outbox = self._outbox, []
                if self._state_room.held:
                    batch, self._outbox = portion(batch, STATE_PORTION)
                self._waiting = sum(map(_size, self._outbox))
                with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.UsageError):
                    for message in self._rpcs.codec.requests(batch):
                        await call.write(message)
                self._left(batch)

    def _left(self, batch: list[Command]) -> None:
        """These commands were sent."""
        if self._state_room.held:
            self._state_room.release(batch)
            if self._on_states is not None:
                self._on_states(Fate.SENT, sum(map(state_bytes, batch)))

    async def _read(self, call: Any) -> None:
        async for message in call:
            self._detector.hear(self._now, self._awake.missed)
            for event in self._rpcs.codec.decode_response(_readable(message)):
                if self.up:
                    self._absorb(event)

    def _absorb(self, event: WorkerEvent) -> None:
        match event:
            case StepFrame() | DraftFrame():
                pass  # Most events; they ask nothing of the link.
            case Progress():
                if event.steps != self.progress.steps or not event.queued_tokens:
                    self._moved_at = self._now
                self.progress = event
                self.placed.reported()
                return
            case Draining():
                self.draining = True
            case SessionStarted():
                self._openings.opened(event.handle, event.cached_tokens, self._now)
            case SessionGone():
                self._forget(event.handle)
        self._on_event(self, event)

    def cut(self, reason: str) -> None:
        """Give the worker up at once, and connect anew."""
        if self.up:
            log.warning("%s %s: %s", self.role.value, self.worker_id, reason)
            self.problem, self.up = reason, False
            self._call.cancel()

    def _report(self, problem: str) -> None:
        """Log a problem once, not at every retry."""
        if problem != self.problem:
            self.problem = problem
            log.warning("%s at %s: %s", self.role.value, self.address, problem)


def _size(command: Command) -> int:
    """How many sessions a command is for."""
    if isinstance(command, StepFrame | DraftFrame):
        return command.size
    return len(command.handles) // 4 if isinstance(command, Grants) else 1


def _readable(message: Any) -> Any:
    """A worker's message; gRPC makes None of bytes that cannot be parsed."""
    if message is None:
        raise ProtocolError("it sent a message that cannot be parsed")
    return message


def _check(description: WorkerDescription, role: Role) -> None:
    if description.role is not role:
        raise StartError(f"it is a {description.role.value}, not a {role.value}")
    if not description.protocol_min <= PROTOCOL <= description.protocol_max:
        raise StartError(
            f"it speaks protocol {description.protocol_min} to {description.protocol_max}, "
            f"this orchestrator {PROTOCOL}"
        )
    if role is Role.VERIFIER and not (description.vocab_size and description.max_context_length):
        raise StartError("it describes no model: a vocabulary or a context of 0 tokens")


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower()}: {error.details()}"
    return str(error)
