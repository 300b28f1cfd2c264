"""Between our records and what Redis holds and answers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any
from urllib.parse import quote

from paceline.together import MOST_COMPLETIONS

from orchestrator.session.ports import (
    Created,
    NewSession,
    Outline,
    SessionKey,
    StoredRound,
    StoredSession,
)
from orchestrator.steering.rounds import GivenUp, Matched
from services.contract.errors import StoreError
from services.contract.types import FinishReason, SessionStatus

RECORD_VERSION = 1
OUTLINE = (
    *("version", "status", "term", "prompt_len", "committed_len", "seed", "finish_reason"),
    *("created_ms", "completion"),
)
"""Fields of the meta hash that are short in every session."""
WHOLE = (
    *OUTLINE,
    *("owner", "resolved", "digest", "target_fingerprint", "prompt", "ephemeral", "matched_stop"),
    *("lease_until_ms", "relaxed", "verifier"),
)
"""Those that a session is read from. There may be more: older versions kept the request."""
_GIVEN_UP, _COSTLY = "given up", "costly"
# Far above what a session can come to, far below what a message can carry.
_MOST_TERMS = 2**31
_MOST_SEEDS = 2**64
_MOST_TOKENS = 2**31


@lru_cache(maxsize=2_048)
def keys_of(prefix: str, key: SessionKey) -> tuple[str, str, str]:
    """The session's meta hash, its tokens and its rounds; one hash tag, so one slot.

    Both names are escaped: no two sessions of two tenants can meet in one key.
    """
    family = f"{prefix}{{{tag_of(key)}}}:"
    return f"{family}meta", f"{family}tokens", f"{family}rounds"


def tag_of(key: SessionKey) -> str:
    """What decides the slot of a session's keys."""
    return f"{quote(key.tenant, safe=':')}/{quote(key.session_id, safe=':')}"


def pack(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def unpack(packed: bytes) -> tuple[int, ...]:
    """Inverse of `pack`. Raises ValueError for bytes that were cut."""
    if len(packed) % 4:
        raise ValueError("not a whole number of tokens")
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def encode_stop(matched_stop: Matched) -> str:
    """A stop string, a stop token's id or why there is no end, as text that says which it is."""
    match matched_stop:
        case None:
            return ""
        case GivenUp(reason, costly):
            return f"{_COSTLY if costly else _GIVEN_UP}:{reason}"
        case int():
            return f"token:{matched_stop}"
        case str():
            return f"text:{matched_stop}"


def decode_stop(encoded: bytes) -> Matched:
    """Inverse of `encode_stop`."""
    kind, _, value = encoded.decode().partition(":")
    if kind == "token":
        return int(value)
    if kind in (_GIVEN_UP, _COSTLY):
        return GivenUp(value, costly=kind == _COSTLY)
    return value if kind == "text" else None


def encode_session(
    session: NewSession, lease_ms: int, *, relaxed: bool = False
) -> list[bytes | str | int]:
    """Name, value, … of the meta hash, but for what the script itself sets."""
    fields: dict[str, bytes | str | int] = {
        "version": RECORD_VERSION,
        "resolved": session.resolved,
        "target_fingerprint": session.target_fingerprint,
        "prompt": pack(session.prompt),
        "prompt_len": len(session.prompt),
        "seed": str(session.seed),
        "owner": session.owner,
        "ephemeral": int(session.ephemeral),
        "lease_ms": lease_ms,
        "relaxed": int(relaxed),
    }
    if session.n > 1:
        fields["completion"] = f"{session.index}/{session.n}"
    return list(chain.from_iterable(fields.items()))


def decode_created(reply: list[Any]) -> Created:
    """The answer of create.lua."""
    _, created, term = reply
    return Created(bool(created), int(term))


def decode_status(name: bytes) -> SessionStatus:
    """A status as the scripts write it."""
    return SessionStatus[name.decode().upper()]


def decode_taken(reply: list[Any]) -> tuple[SessionStatus, int, int]:
    """The answer of acquire.lua: status, term, and the bytes that it takes to be read whole."""
    _, status, term, size = reply
    return decode_status(status), _count(term, _MOST_TERMS), int(size)


def decode_outline(reply: list[Any]) -> Outline:
    """The answer of look.lua. Raises as `decode_session` does."""
    _, flat, size = reply
    return Outline(**_short(_meta(flat)), size=int(size))


def _short(meta: dict[bytes, bytes]) -> dict[str, Any]:
    """The fields of an `Outline`."""
    index, n = _completion(meta.get(b"completion", b"0/1"))
    reason = meta.get(b"finish_reason")
    return {
        "status": decode_status(meta[b"status"]),
        "term": _count(meta[b"term"], _MOST_TERMS),
        "prompt_len": _count(meta[b"prompt_len"], _MOST_TOKENS),
        "committed_len": _count(meta[b"committed_len"], _MOST_TOKENS),
        "seed": _count(meta[b"seed"], _MOST_SEEDS),
        "finish_reason": FinishReason[reason.decode().upper()] if reason else None,
        "created_ms": int(meta[b"created_ms"]),
        "index": index,
        "n": n,
    }


def _meta(flat: list[bytes]) -> dict[bytes, bytes]:
    meta: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    if (version := int(meta[b"version"])) > RECORD_VERSION:
        raise StoreError(f"the session was stored by a newer version ({version})")
    return meta


def decode_session(reply: list[Any]) -> StoredSession:
    """The answer of get.lua.

    Raises ValueError, LookupError or TypeError for a malformed record, StoreError for
    one that a newer version wrote.
    """
    _, flat, tokens = reply
    meta = _meta(flat)
    session = StoredSession(
        **_short(meta),
        owner=meta[b"owner"].decode(),
        resolved=meta.get(b"resolved", b""),
        digest=meta[b"digest"].decode(),
        target_fingerprint=meta[b"target_fingerprint"].decode(),
        prompt=unpack(meta.get(b"prompt", b"")),
        committed=unpack(tokens),
        ephemeral=meta[b"ephemeral"] == b"1",
        matched_stop=decode_stop(meta.get(b"matched_stop", b"")),
        lease_until_ms=int(meta[b"lease_until_ms"]),
        relaxed=meta.get(b"relaxed") == b"1",
        verifier=meta.get(b"verifier", b"").decode(),
    )
    _check_lengths(session)
    return session


def _count(text: bytes, limit: int) -> int:
    value = int(text)
    if not 0 <= value < limit:
        raise ValueError("a number is out of its range")
    return value


def _completion(text: bytes) -> tuple[int, int]:
    """Which completion it is, and of how many; ValueError for none that there can be."""
    index, _, count = text.partition(b"/")
    n = _count(count, MOST_COMPLETIONS + 1)
    return _count(index, n), n


def _check_lengths(session: StoredSession) -> None:
    """The text and the prompt are whole, unless they were dropped on purpose."""
    lengths = (len(session.prompt), len(session.committed))
    dropped = session.ephemeral and lengths == (0, 0)
    if lengths != (session.prompt_len, session.committed_len) and not (
        dropped and session.finish_reason is not None
    ):
        raise ValueError("the record and its text do not fit")


def decode_rounds(reply: list[Any]) -> tuple[StoredRound, ...]:
    """The answer of rounds.lua, oldest first."""
    return tuple(_decode_round(flat) for _, flat in reply[1])


def _decode_round(flat: list[bytes]) -> StoredRound:
    fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    return StoredRound(
        term=int(fields[b"term"]),
        round=int(fields[b"round"]),
        base_len=int(fields[b"base_len"]),
        tokens=int(fields[b"tokens"]),
        record=fields[b"record"],
    )
