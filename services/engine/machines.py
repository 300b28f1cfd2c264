"""The machines that the ranks of one model are on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.contract.errors import StartError

LOOPBACK = "127.0.0.1"
LEAST_SECRET = 16
"""Bytes of a secret that nobody guesses."""


@dataclass(frozen=True, slots=True)
class Machines:
    """`count` machines with as many ranks each, those of machine 0 first, which serves.

    `here`: which of them this one is. `host`, `port`: by what the others reach machine 0, which
    listens at `listen`. `secret_file` holds what they all know and others do not.
    """

    count: int = 1
    here: int = 0
    host: str = LOOPBACK
    port: int = 0
    listen: str = LOOPBACK
    secret_file: Path | None = None

    @property
    def address(self) -> str:
        """Where machine 0 is reached."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def secret(self) -> bytes:
        """What the file holds, without space around. Raises StartError, one line."""
        if self.secret_file is None:
            raise StartError("rank_secret_file: ranks on several machines need a secret")
        try:
            secret = self.secret_file.read_bytes().strip()
        except OSError as error:
            raise StartError(f"rank_secret_file: {error}") from error
        if len(secret) < LEAST_SECRET:
            raise StartError(
                f"rank_secret_file: {self.secret_file} holds {len(secret)} bytes, "
                f"and a secret has {LEAST_SECRET} or more"
            )
        return secret

    def ranks(self, size: int, machine: int | None = None) -> range:
        """Those of `size` ranks that are on a machine; left out: on this one."""
        each, which = size // self.count, self.here if machine is None else machine
        return range(which * each, (which + 1) * each)
