"""Certificates for etcd's servers and clients in tests: valid, expired, and of another CA."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import trustme

from elastic_agent.rendezvous.etcd.credentials import Tls


class Certificates:
    """A CA, and certificates that it signs, as files in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ca = trustme.CA()
        self.ca_file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_file))

    def issue(self, name: str, host: str = "127.0.0.1", days: int = 30) -> tuple[Path, Path]:
        """The files of a certificate and of its key. It is valid for so many days from now; below 0: it has expired."""
        ends = datetime.now(timezone.utc) + timedelta(days=days)
        made = self._ca.issue_cert(host, not_before=ends - timedelta(days=365), not_after=ends)
        cert, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        made.private_key_pem.write_to_path(str(key))
        for number, part in enumerate(made.cert_chain_pems):
            part.write_to_path(str(cert), append=number > 0)
        return cert, key

    def tls(self, name: str, days: int = 30) -> Tls:
        """A new client certificate, with this CA for the servers'."""
        cert, key = self.issue(name, "agent.example", days)
        return Tls(str(self.ca_file), str(cert), str(key))
