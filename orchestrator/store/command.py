"""One script call: as the server reads it, and what becomes of its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hiredis import pack_command
from redis import exceptions

from orchestrator.store.scripts import script
from services.contract.errors import DataLoss, PacelineError, StoreError
from services.runtime.redis_client import is_away, kind_of

Arg = bytes | str | int
Reply = list[Any]
_TORN = b"torn"
_LOSSES = (b"missing", b"lost", _TORN)


def tells_loss(reply: Any) -> bool:
    """Whether the reply says that the server has less than it should."""
    return type(reply) is list and reply[0] in _LOSSES


def tells_torn(reply: Reply) -> bool:
    """Whether the record itself shows the loss: the server has it without its text."""
    return bool(reply[0] == _TORN)


def no_mending(_torn: bool) -> Call | None:
    """For calls whose refusal is final."""
    return None


class Call(NamedTuple):
    """One script call.

    `mend` is asked, once the server said that something is missing, for a call to be
    made before this one is repeated; it hears whether the record itself shows that.
    `on_settled` hears, once, that the call is not under way any more. `expects`: bytes of the
    reply, where they may be many.
    """

    script: str
    keys: Sequence[str]
    args: Sequence[Arg]
    decode: Callable[[Reply], Any]
    deadline: float
    answer: asyncio.Future[Any]
    mend: Callable[[bool], Call | None] = no_mending
    on_settled: Callable[[], None] | None = None
    expects: int = 0

    def packed(self) -> bytes:
        """The call as the server reads it."""
        return pack("EVALSHA", script(self.script).sha, len(self.keys), *self.keys, *self.args)

    def settle(self, reply: Any) -> None:
        """Answer the caller with what the server replied, or with an error."""
        if self.on_settled is not None:
            self.on_settled()
        # The caller may have been cancelled meanwhile; the write stands.
        if self.answer.done():
            return
        try:
            self.answer.set_result(self._decoded(reply))
        except PacelineError as error:
            self.answer.set_exception(error)

    def _decoded(self, reply: Any) -> Any:
        if isinstance(reply, Exception):
            raise _store_error(reply) from reply
        try:
            return self.decode(reply)
        except PacelineError:
            raise
        except Exception as error:
            # Stored bytes may be anything; what reading them raises may be, too.
            raise DataLoss("the session store holds a malformed record") from error


def pack(*parts: Arg) -> bytes:
    """One command in the Redis protocol."""
    command: Any = parts  # hiredis' stub knows tuples of one part alone.
    packed: bytes = pack_command(command)
    return packed


def _store_error(error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    if is_away(error):
        refuses = isinstance(error, exceptions.ResponseError)
        why = "takes no writes for now" if refuses else "does not answer"
        return StoreError(f"the session store {why}: {kind_of(error)}")
    # A refusal may quote the command, so only its first word goes further.
    return StoreError(f"the session store refused: {type(error).__name__}")
