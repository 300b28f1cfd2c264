"""Certificates made on the spot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from services.cluster.certificates import LOOPBACK, write_pair
from services.runtime.serving import TlsFiles

AN_HOUR = timedelta(hours=1)


@dataclass
class Authority:
    """A CA whose certificate is in `folder`, where it also writes what it issues."""

    folder: Path
    ca: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.ca.cert_pem.write_to_path(str(self.path))

    @property
    def path(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str, *identities: str, expired: bool = False) -> TlsFiles:
        """A certificate and its key; who shows it trusts this CA and nobody else."""
        now = datetime.now(UTC)
        ends = now - AN_HOUR if expired else now + 24 * AN_HOUR
        issued = self.ca.issue_cert(
            *(identities or LOOPBACK), not_before=now - 48 * AN_HOUR, not_after=ends
        )
        certificate, key = write_pair(issued, self.folder, name)
        return TlsFiles(certificate, key, self.path)


def trusting(files: TlsFiles, authority: Authority) -> TlsFiles:
    """The same certificate, of somebody who trusts this CA."""
    return replace(files, ca=authority.path)
