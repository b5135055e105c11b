"""The values of `--rdzv-backend etcd`: endpoints, and the keys of `--rdzv-conf` that only etcd has.

Some keys have a second name, which torch's handler for etcd v2 has for the same setting (torch 2.13,
`torch.distributed.elastic.rendezvous.etcd_rendezvous`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ...agent.errors import UsageError
from ...agent.spec import PASSWORD_VARIABLE, EtcdSpec
from .rdzv_conf import Conf
from .values import endpoint as parse_endpoint
from .values import joined, seconds

ETCD_PORT = 2379
"""Port of an endpoint that names none."""
LONGEST_PREFIX = 200
"""Characters."""
LEAST_TTL_S = 60.0
"""Shortest `record_ttl`: with less, a job would lose its record while all its agents are paused or starved."""

KEYS = {
    "prefix": "etcd: beginning of the keys of all jobs (/elastic-agent)",
    "record_ttl": "etcd: seconds for which the record of an ended job is kept (86400)",
    "protocol": "etcd: http or https (https if cacert or cert is given)",
    "cacert": "etcd: file of the CAs that may sign the servers' certificates (those this system trusts)",
    "cert": "etcd: file of this node's certificate, for a cluster that requires one; may be replaced",
    "key": "etcd: file of the private key of cert",
    "user": "etcd: name of the user",
    "password_file": f"etcd: file with the user's password, read at each login (or the variable {PASSWORD_VARIABLE})",
    "etcd_prefix": "the same as prefix",
    "ca_cert": "the same as cacert",
    "ssl_cert": "the same as cert",
    "ssl_cert_key": "the same as key",
}
"""Every key, with its meaning, and its default in brackets."""

_TWINS = (("prefix", "etcd_prefix"), ("cacert", "ca_cert"), ("cert", "ssl_cert"), ("key", "ssl_cert_key"))


def read_endpoints(text: str) -> tuple[str, bool | None]:
    """Read `HOST[:PORT],...`, each of which may begin with http:// or https://. Returns the endpoints with their ports,
    and whether they ask for TLS (None: they have no scheme). Raises UsageError."""
    found: list[str] = []
    schemes: set[str] = set()
    for part in text.split(","):
        scheme, mark, rest = part.strip().rpartition("://")
        if mark and scheme not in ("http", "https"):
            raise UsageError(f"--rdzv-endpoint is {text!r}, where {scheme!r} is neither http nor https; give HOST:PORT")
        schemes.add(scheme)
        where = joined(*parse_endpoint("--rdzv-endpoint", rest.rstrip("/") if mark else rest, ETCD_PORT))
        if where not in found:
            found.append(where)
    if len(schemes) > 1:
        raise UsageError(f"--rdzv-endpoint is {text!r}, which mixes http, https and neither; give all of them alike")
    return ",".join(found), {"http": False, "https": True}.get(schemes.pop())


def read_etcd_conf(given: Conf, tls: bool | None, env: Mapping[str, str]) -> EtcdSpec:
    """Check the keys. `tls`: as returned by `read_endpoints`. Raises UsageError."""
    for ours, theirs in _TWINS:
        if ours in given and theirs in given:
            raise UsageError(f"--rdzv-conf gives both {ours} and {theirs}, which set the same; give only one of them")
    plain = {theirs: ours for ours, theirs in _TWINS}
    conf = {plain.get(key, key): str(value) for key, value in given.items() if key in KEYS}
    return EtcdSpec(
        prefix=_prefix(conf.get("prefix", EtcdSpec().prefix)),
        record_ttl_s=_ttl(conf),
        tls=_tls(conf, tls),
        ca_file=conf.get("cacert", ""),
        cert_file=conf.get("cert", ""),
        key_file=conf.get("key", ""),
        user=conf.get("user", ""),
        password=_password(conf, env),
        password_file=conf.get("password_file", ""),
    )


def _prefix(text: str) -> str:
    if len(text) > LONGEST_PREFIX or not text.strip("/") or not text.isprintable():
        raise UsageError(
            f"--rdzv-conf prefix is {text!r}; give 1 to {LONGEST_PREFIX} characters besides slashes, such as /jobs"
        )
    return text.rstrip("/")


def _ttl(conf: Mapping[str, str]) -> float:
    ttl_s = seconds("--rdzv-conf record_ttl", conf.get("record_ttl", EtcdSpec().record_ttl_s))
    if ttl_s < LEAST_TTL_S:
        raise UsageError(
            f"--rdzv-conf record_ttl is {ttl_s:g} s, less than {LEAST_TTL_S:g}: a job whose agents are all paused or "
            "starved for so long would lose its record; raise it"
        )
    return ttl_s


def _tls(conf: Mapping[str, str], by_endpoint: bool | None) -> bool:
    protocol = conf.get("protocol", "").lower()
    if protocol not in ("", "http", "https"):
        raise UsageError(f"--rdzv-conf protocol is {protocol!r}; give http or https")
    tls = {"http": False, "https": True}.get(protocol, by_endpoint)
    if by_endpoint is not None and tls is not by_endpoint:
        other = "https" if by_endpoint else "http"
        raise UsageError(f"--rdzv-conf protocol is {protocol}, but --rdzv-endpoint has {other}://; give one of them")
    files = [key for key in ("cacert", "cert", "key") if key in conf]
    if tls is False and files:
        raise UsageError(f"--rdzv-conf {files[0]} is given, but http has no certificates; give protocol=https")
    if ("cert" in conf) != ("key" in conf):
        alone, missing = ("cert", "key") if "cert" in conf else ("key", "cert")
        raise UsageError(f"--rdzv-conf gives {alone} and no {missing}; give both, or none")
    return bool(files) if tls is None else tls


def _password(conf: Mapping[str, str], env: Mapping[str, str]) -> str:
    """The password, unless it is in a file; that file must be usable now."""
    user, path = conf.get("user", ""), conf.get("password_file", "")
    if not user:
        if path:
            raise UsageError("--rdzv-conf gives password_file and no user; give both, or none")
        return ""
    if not path:
        if PASSWORD_VARIABLE not in env:
            raise UsageError(
                f"--rdzv-conf user is {user!r}, but there is no password; give password_file=FILE, or set the variable "
                f"{PASSWORD_VARIABLE}"
            )
        return env[PASSWORD_VARIABLE]
    from ...rendezvous.etcd.credentials import read_password

    try:
        read_password(path)
    except ValueError as why:
        raise UsageError(f"--rdzv-conf password_file is {path!r}, which {why}") from why
    return ""
