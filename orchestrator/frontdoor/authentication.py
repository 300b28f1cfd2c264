"""Who a client is: bearer tokens, each of one tenant, from a file that may change.

    {"tenants": {"acme": {"tokens": ["sha256:<64 hex digits>"],
                          "max_sessions": 8, "max_tokens_in_flight": 40000, "max_tokens": 2048}}}

Every limit may be left out. The file holds digests, so that it reveals no token; a token
must be random (`paceline token` draws one), since the digest has no salt.

The file is read again when it changes. A removed token opens no new call; its open streams
run to their end, at most the session's deadline. If the file cannot be read, the last good
version stays in force.
"""

from __future__ import annotations

import hmac
import json
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from orchestrator.session.tenants import DEFAULT_TENANT, Tenant, TenantLimits
from services.contract.errors import StartError, Unauthenticated
from services.runtime.atomic_file import read_bytes
from services.runtime.serving.bearer import digest_of
from services.runtime.serving.reloading import Reloading

SETTING = "tokens_file"
# Shorter than any token that we draw: what is quoted of a file is none of them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")

_Entry = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
_Limit = Annotated[int | None, Field(ge=1)]


class Identify(Protocol):
    """Whose call it is, by the token it shows, which may be empty. Raises Unauthenticated."""

    def __call__(self, token: str) -> Tenant:
        """The tenant."""
        ...


def anyone(token: str) -> Tenant:  # noqa: ARG001
    """Without a tokens file every caller is the default tenant."""
    return DEFAULT_TENANT


class TokensFile:
    """The tenants of a tokens file, kept up to date. Call it to identify a caller."""

    def __init__(self, path: Path) -> None:
        """Raises StartError, one line naming the file and the place in it."""
        self._known = Reloading((path,), lambda: _read(path))

    def __call__(self, token: str) -> Tenant:
        """See `Identify`; every refusal says the same."""
        tenant = self._tenant_of(token)
        if tenant is None:
            raise Unauthenticated("a valid token is needed: authorization: Bearer TOKEN")
        return tenant

    def _tenant_of(self, token: str) -> Tenant | None:
        """Compare with every entry, so that the time reveals nothing."""
        digest, found = digest_of(token), None
        for entry, tenant in self._known.current():
            if hmac.compare_digest(entry, digest):
                found = tenant
        return found


class _Known(NamedTuple):
    digest: bytes
    tenant: Tenant


class _TenantEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    tokens: list[_Entry]
    max_sessions: _Limit = None
    max_tokens_in_flight: _Limit = None
    max_tokens: _Limit = None

    def limits(self) -> TenantLimits:
        return TenantLimits(self.max_sessions, self.max_tokens_in_flight, self.max_tokens)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    tenants: dict[str, _TenantEntry]


def _read(path: Path) -> tuple[_Known, ...]:
    content = read_bytes(SETTING, path)
    try:
        return _parse(content)
    except _WrongError as error:
        raise StartError(f"{SETTING}: {path}: {error}") from None


class _WrongError(Exception):
    """What is wrong with the file, and where; no word of it may be a token."""


def _parse(content: bytes) -> tuple[_Known, ...]:
    try:
        file = _File.model_validate(json.loads(content, object_pairs_hook=_each_once))
    except ValidationError as error:
        first: Any = error.errors(include_input=False, include_url=False)[0]
        raise _WrongError(f"{_place(*first['loc'])}: {first['msg']}") from None
    except json.JSONDecodeError as error:
        raise _WrongError(f"not JSON: {error.msg} in line {error.lineno}") from None
    except (ValueError, RecursionError):
        raise _WrongError("not JSON") from None
    return _known(file)


def _known(file: _File) -> tuple[_Known, ...]:
    known: list[_Known] = []
    places: dict[str, str] = {}
    for name, entry in file.tenants.items():
        if not _NAME.fullmatch(name):
            allowed = "1 to 32 letters, digits and -_. , a letter or digit first"
            raise _WrongError(f"tenants: a tenant's name is not {allowed}")
        tenant = Tenant(name, entry.limits())
        for index, token in enumerate(entry.tokens):
            place = _place("tenants", name, "tokens", index)
            if token in places:
                raise _WrongError(f"{place}: the same token as {places[token]}")
            places[token] = place
            known.append(_Known(bytes.fromhex(token.removeprefix("sha256:")), tenant))
    return tuple(known)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without duplicate names, of which one would be lost silently."""
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise _WrongError(f"{_place(name)}: named twice")
    return dict(pairs)


def _place(*path: str | int) -> str:
    """`tenants.acme.tokens[0]`; a name that could be a token is not shown."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{_quoted(part)}" for part in path]
    return "".join(parts).removeprefix(".") or "the whole file"


def _quoted(name: str) -> str:
    return name if _NAME.fullmatch(name) else "(a name)"
