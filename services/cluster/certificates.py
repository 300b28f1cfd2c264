"""Certificates for development: `make certs`.

A CA, and one certificate each for servers, for orchestrators' links and for clients.
The CA's key lies beside them, so nothing here is for a place that strangers reach.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from services.contract.errors import StartError
from services.runtime.atomic_file import replacing

SERVER_NAME = "paceline-worker"
"""In the server's certificate beside the names of this machine: `--link-server-name`."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")
NAMES = {
    "server": (*LOOPBACK, SERVER_NAME),
    "orchestrator": ("paceline-orchestrator",),
    "client": ("paceline-client",),
}


def make_certificates(folder: Path, *, days: int = 365, new_ca: bool = False) -> None:
    """Write `ca.pem`, `ca.key` and a `.pem` and a `.key` for each of NAMES, all PEM.

    A CA that is there already is kept, unless `new_ca`; the others are always new.
    Keys are readable by their owner alone. Raises StartError for a CA that cannot be read.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = None if new_ca else read_ca(folder)
    if authority is None:
        authority = trustme.CA(organization_name="Paceline development")
        _write(folder / "ca.key", authority.private_key_pem.bytes(), secret=True)
        _write(folder / "ca.pem", authority.cert_pem.bytes())
    until = datetime.now(UTC) + timedelta(days=days)
    for name, identities in NAMES.items():
        issued = authority.issue_cert(*identities, common_name=f"paceline {name}", not_after=until)
        write_pair(issued, folder, name)


def read_ca(folder: Path) -> trustme.CA | None:
    """The CA that an earlier run wrote to `folder`; None when there is none."""
    files = folder / "ca.pem", folder / "ca.key"
    if not any(file.exists() for file in files):
        return None
    try:
        certificate, key = (file.read_bytes() for file in files)
        return trustme.CA.from_pem(certificate, key)
    except (OSError, ValueError) as error:
        raise StartError(
            f"{folder} holds no whole CA ({type(error).__name__}); --new-ca makes another"
        ) from error


def write_pair(issued: trustme.LeafCert, folder: Path, name: str) -> tuple[Path, Path]:
    """Write a certificate with its chain, and its key; where they are."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _write(key, issued.private_key_pem.bytes(), secret=True)
    _write(certificate, b"".join(part.bytes() for part in issued.cert_chain_pems))
    return certificate, key


def _write(file: Path, content: bytes, *, secret: bool = False) -> None:
    """Whole or not at all; a secret is never readable by others, not even at first."""
    with replacing(file) as partial:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600 if secret else 0o644)
        partial.write_bytes(content)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(prog="make certs", description=(__doc__ or "").split("\n")[2])
    parser.add_argument("--folder", type=Path, default=Path(".certs"), help="where (.certs)")
    parser.add_argument("--days", type=int, default=365, help="how long they hold (365)")
    parser.add_argument("--new-ca", action="store_true", help="replace the CA that is there")
    given = parser.parse_args(arguments)
    try:
        make_certificates(given.folder, days=given.days, new_ca=given.new_ca)
    except StartError as error:
        print(f"certificates: {error}", file=sys.stderr)
        return 1
    print(f"ca, {', '.join(NAMES)} in {given.folder}{os.sep}, each a .pem and a .key")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
