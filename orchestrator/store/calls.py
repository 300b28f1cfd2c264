"""Script calls of sessions: keys on the way out, exceptions on the way back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from orchestrator.session.ports import SessionKey
from orchestrator.store.command import Arg, Call, Reply, no_mending
from orchestrator.store.lanes import Sender
from services.contract.errors import (
    AlreadyExists,
    DataLoss,
    Fenced,
    NotFound,
    PacelineError,
    SessionAborted,
    StoreError,
)

T = TypeVar("T")
_LONGEST_DETAIL = 80


def send(writer: Sender, call: Call) -> asyncio.Future[Any]:
    """Queue a call; what is read of its session from now on comes after it."""
    return writer.send(writer.under_way.note(call))


def prepare(
    writer: Sender,
    name: str,
    key: SessionKey,
    keys: Sequence[str],
    args: Iterable[Arg],
    decode: Callable[[Reply], T],
    mend: Callable[[bool], Call | None] = no_mending,
) -> Call:
    """A call of one script for one session, not queued yet; its patience begins now.

    `keys` are what `keys_of` says.
    """

    def answer(reply: Reply) -> T:
        if reply[0] != b"ok":
            refusal = _refusal(name, key, reply)
            if isinstance(refusal, Fenced):
                writer.on_fenced()
            raise refusal
        return decode(reply)

    loop = asyncio.get_running_loop()
    deadline = loop.time() + writer.options.patience_s
    return Call(name, keys, tuple(args), answer, deadline, loop.create_future(), mend)


def _detail(reply: Reply) -> str:
    """What a script adds to its code; stored bytes may be part of it."""
    return reply[1].decode()[:_LONGEST_DETAIL] if len(reply) > 1 else ""


def nothing(_: Reply) -> None:
    """For replies that say nothing but ok."""


def _refusal(name: str, key: SessionKey, reply: Reply) -> PacelineError:
    """The one place where the scripts' codes become exceptions."""
    session = f"session {key.session_id!r}"
    code, detail = reply[0].decode(), _detail(reply)
    match code:
        case "missing" if name in ("acquire", "look", "get", "abort"):
            return NotFound(f"{session} does not exist")
        case "missing":
            return DataLoss(f"{session} is not in the store any more")
        case "lost":
            return DataLoss(f"{session}: the store fell back to {detail}")
        case "torn":
            return DataLoss(f"{session}: the store has {detail}; does it evict keys?")
        case "fenced":
            return Fenced(f"{session} has another owner now, in term {detail}")
        case "overtaken":
            return Fenced(f"{session} is read by a later call of the same reader")
        case "ended" if name == "seed":
            return Fenced(f"{session} was ended by another owner")
        case "aborted":
            return SessionAborted(f"{session} was aborted")
        case "conflict" if name == "create":
            return AlreadyExists(f"{session} exists with other content")
        case "newer":
            return StoreError(f"{session} was stored by a newer version ({detail})")
        case _:
            return StoreError(f"{session}: {code} {detail}".rstrip())
