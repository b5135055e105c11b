"""Bad input and faults: each ends in one line with the thing, its value and what to do.

Each test runs the command line as a process. There is no traceback of ours, no hang, and no process is left, which the
leak check of every test makes sure of.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.desk import WORKER, Desk
from support.harness import Cluster, ProcessNode
from support.network import free_port

SOON_S = 10.0
"""Within this time every mistake is reported."""
CONNECT_S = 1.0
"""read_timeout of the tests in which no store comes."""
HINT = " (see elastic-agent --help)"
AGENT = (sys.executable, "-m", "elastic_agent")


@dataclass(frozen=True)
class Done:
    """How a command line ended."""

    code: int
    out: str
    err: str
    took_s: float

    @property
    def last(self) -> str:
        return self.err.splitlines()[-1]


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A worker that prints `trained` and exits 0."""
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    return str(path)


def elastic_agent(
    *args: str, cwd: Path, env: Mapping[str, str] | None = None, code: str = "", limit_s: float = 30.0
) -> Done:
    """Run the command line to its end; `code` runs in its process first."""
    command = (
        [sys.executable, "-c", f"{code}\nfrom elastic_agent.launcher.cli import entry; entry()"] if code else AGENT
    )
    began = time.monotonic()
    done = subprocess.run(
        [*command, *args],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=cwd,
        capture_output=True,
        check=False,
        text=True,
        timeout=limit_s,
    )
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def assert_one_line(done: Done, status: int, *parts: str, within_s: float = SOON_S) -> None:
    """Refused in time, with one line that has all of `parts`; a line that it is waiting may come before."""
    lines = [line for line in done.err.splitlines() if "] waiting for " not in line]
    assert (done.code, len(lines)) == (status, 1), done.err
    assert lines[0].startswith(f"elastic-agent: exit {status}: ")
    assert [part for part in parts if part not in lines[0]] == [], lines[0]
    assert lines[0].endswith(HINT) is (status == 2)
    assert done.took_s < within_s
    assert done.out == ""


# -- the command line ----------------------------------------------------------------------------------------------

WRONG: list[tuple[Sequence[str], Sequence[str]]] = [
    (["--nnodes", "3:2"], ["--nnodes", "'3:2'", "correct"]),
    (["--nnodes", "0"], ["--nnodes", "'0'"]),
    (["--nproc-per-node", "many"], ["--nproc-per-node", "'many'"]),
    (["--max-restart", "-1"], ["--max-restarts", "-1"]),
    (["--rdzv-backend", "etcd3", "--rdzv-endpoint", "h:1"], ["--rdzv-backend", "'etcd3'", "c10d"]),
    (["--rdzv-bakend", "c10d"], ["--rdzv-bakend", "did you mean '--rdzv-backend'"]),
    (["--rdzv-backend", "c10d", "--nnodes", "2"], ["--rdzv-endpoint HOST:PORT"]),
    (["--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", "h:70000"], ["'h:70000'", "0 to 65535"]),
    (["--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", "h:0"], ["'h:0'", "port 0", "give the port"]),
    (["--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", "h:x"], ["'h:x'", "give HOST:PORT"]),
    (["--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", "a b:1"], ["'a b:1'"]),
    (["--rdzv-conf", "read_timout=3"], ["'read_timout'", "did you mean 'read_timeout'"]),
    (["--rdzv-conf", "read_timeout"], ["'read_timeout'", "key=value"]),
    (["--rdzv-conf", "read_timeout=soon"], ["read_timeout", "'soon'", "seconds"]),
    (["--rdzv-id", "x" * 201], ["201 characters", "limit is 200", "shorten"]),
    (["--nnodes", "2", "--node-rank", "2", "--master-port", "29777"], ["--node-rank is 2", "0 to 1"]),
    (["--nnodes", "2", "--master-port", "70000"], ["--master-port", "'70000'"]),
    (["--nnodes", "2", "--master-port", "0"], ["0, which means any", "--master-port"]),
    (["--log-dir", "/proc/none"], ["/proc/none", "--log-dir"]),
    (["--log-dir", "train.py/logs"], ["train.py", "--log-dir"]),
    (["--log-dir", "train.py"], ["'train.py'", "directory"]),
]


@pytest.mark.parametrize(("flags", "parts"), WRONG, ids=[" ".join(flags)[:40] for flags, _ in WRONG])
def test_a_wrong_flag_brings_one_line(flags: Sequence[str], parts: Sequence[str], script: str, tmp_path: Path) -> None:
    """It has the flag, its value and what to do; no worker starts."""
    assert_one_line(elastic_agent(*flags, script, cwd=tmp_path), 2, *parts)


MISSING: list[tuple[Sequence[str], Mapping[str, str], Sequence[str]]] = [
    (["gone.py"], {}, ["'gone.py'", "does not exist", "correct the path"]),
    (["folder"], {}, ["'folder'", "directory", "__main__.py"]),
    (["-m", "gone_module"], {}, ["'gone_module'", "PYTHONPATH"]),
    (["-m", "gone_package.train"], {}, ["'gone_package'", "PYTHONPATH"]),
    (["--no-python", "gone-program"], {}, ["'gone-program'", "PATH"]),
    (["--no-python", "./gone"], {}, ["'./gone'", "does not exist"]),
    (["--no-python", "./train.py"], {}, ["'./train.py'", "not executable", "chmod +x"]),
    (["--no-python", "echo"], {"PATH": ""}, ["'echo'", "PATH"]),
    (["train.py"], {"PYTHON_EXEC": "/gone/python"}, ["PYTHON_EXEC", "'/gone/python'"]),
    (["train.py"], {"PYTHON_EXEC": "train.py"}, ["PYTHON_EXEC", "'train.py'"]),
    ([], {}, ["no script", "give its path"]),
]


@pytest.mark.parametrize(("args", "env", "parts"), MISSING, ids=[" ".join(args) for args, _, _ in MISSING])
def test_what_cannot_run_brings_one_line(
    args: Sequence[str], env: Mapping[str, str], parts: Sequence[str], script: str, tmp_path: Path
) -> None:
    """A script, module, program or interpreter that does not exist or cannot be run is found before a worker starts."""
    (tmp_path / "folder").mkdir()
    assert_one_line(elastic_agent(*args, cwd=tmp_path, env=env), 2, *parts)


@pytest.mark.parametrize("args", [["-m", "here"], ["-m", "package.deep"], ["program"], ["--no-python", "./run.sh"]])
def test_what_can_run_is_not_refused(args: Sequence[str], tmp_path: Path) -> None:
    """A module in this directory, one in a package without __init__.py, a directory with __main__.py, an executable
    script."""
    for path in ("here.py", "package/deep.py", "program/__main__.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("print('ran')\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "run.sh").chmod(0o755)
    done = elastic_agent(*args, cwd=tmp_path)
    assert (done.code, done.out) == (0, "ran\n"), done.err


def test_a_program_that_the_kernel_cannot_run_ends_the_job(tmp_path: Path) -> None:
    """Only exec finds that out, so it is the worker's failure: status 1, with the reason in the last line."""
    program = tmp_path / "garbage"
    program.write_bytes(b"\x00\x01 not a program")
    program.chmod(0o755)
    done = elastic_agent("--no-python", "./garbage", cwd=tmp_path)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "Exec format error: './garbage'" in done.last


# -- where it is started -------------------------------------------------------------------------------------------

CLOSERS = {"0": "<&-", "1": ">&-", "2": "2>&-", "12": ">&- 2>&-", "012": "<&- >&- 2>&-"}


def in_shell(redirects: str, args: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> int:
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirects}', "sh", *AGENT, *args],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=cwd,
        check=False,
        timeout=30,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ).returncode


@pytest.mark.parametrize("tee", ["0", "3"])
@pytest.mark.parametrize("closed", CLOSERS)
def test_closed_standard_streams_change_nothing(closed: str, tee: str, tmp_path: Path) -> None:
    """The job runs, output is dropped, and no descriptor of the agent gets the number of a standard stream."""
    (tmp_path / "look.py").write_text(
        "import json, os, sys\n"
        "print('out'); print('err', file=sys.stderr)\n"
        "json.dump([os.readlink(f'/proc/self/fd/{fd}') for fd in range(3)], open('seen', 'w'))\n"
    )
    assert in_shell(CLOSERS[closed], ["--tee", tee, "look.py"], tmp_path) == 0
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen[0] == "/dev/null"
    assert [target.startswith("pipe:") for target in seen[1:]] == [True, True], seen


@pytest.mark.parametrize("redirects", [*CLOSERS.values(), "2>/dev/full", ">/dev/full 2>/dev/full"])
@pytest.mark.parametrize(("name", "status"), [("gone.py", 2), ("fail.py", 1), ("fine.py", 0)])
def test_an_exit_status_needs_no_console(redirects: str, name: str, status: int, tmp_path: Path) -> None:
    """Whether or not the last line can be written, the status is right."""
    (tmp_path / "fail.py").write_text("raise SystemExit(7)\n")
    (tmp_path / "fine.py").write_text("")
    assert in_shell(redirects, [name], tmp_path) == status


@pytest.mark.parametrize("args", [["train.py"], ["SCRIPT"], ["--log-dir", "logs", "SCRIPT"], ["-m", "this"]])
def test_a_deleted_working_directory_brings_one_line(args: Sequence[str], script: str, tmp_path: Path) -> None:
    """Neither the agent nor workers can start there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    filled = [script if arg == "SCRIPT" else arg for arg in args]
    code = f"import os; os.rmdir({str(gone)!r})"
    assert_one_line(elastic_agent(*filled, cwd=gone, code=code), 2, "working directory", "cd ")


def test_a_working_directory_deleted_during_the_run_is_the_hosts_failure(one_node: OneNode) -> None:
    """Workers that run go on; those of the next round cannot start, which charges nobody, and the last line has the
    reason."""
    here = one_node.folder / "here"
    here.mkdir()
    agent = one_node.start("--max-restarts", "5", cwd=here)
    (worker,) = one_node.desk.wait_world(1)
    here.rmdir()
    worker.order("exit 3")
    assert agent.wait() == 71
    assert "the working directory is gone" in agent.text().splitlines()[-1]
    assert agent.text().count("costs this node no restart") == 2
    assert "Traceback" not in agent.text()


def test_a_bare_environment_is_enough(script: str, tmp_path: Path) -> None:
    """No HOME, no PATH, no TMPDIR, no locale: the job runs."""
    done = subprocess.run(
        [*AGENT, script],
        env={"PYTHONPATH": os.environ["PYTHONPATH"]},
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_a_temporary_directory_that_cannot_be_used_is_passed_over(script: str, tmp_path: Path) -> None:
    """TMPDIR may not exist, or take no directory (as /proc); another place is found."""
    for place in ("/gone", "/proc"):
        done = elastic_agent(script, cwd=tmp_path, env={"TMPDIR": place})
        assert (done.code, done.out) == (0, "trained\n"), done.err


@pytest.mark.parametrize("backend", ["memory", "c10d"])
def test_64_descriptors_are_enough_for_a_few_workers(backend: str, script: str, tmp_path: Path) -> None:
    """Four workers run with a low limit on open files, also on the node that hosts the store."""
    there = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"] if backend == "c10d" else []
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    done = elastic_agent(*there, "--nproc-per-node", "4", "--tee", "3", script, cwd=tmp_path, code=code)
    assert done.code == 0, done.err
    assert done.out.count("trained\n") == 4


@pytest.mark.parametrize(("backend", "limit"), [("memory", 8), ("memory", 12), ("memory", 20), ("c10d", 20)])
def test_too_few_descriptors_end_the_job_with_a_reason(backend: str, limit: int, script: str, tmp_path: Path) -> None:
    """With a limit that is far too low, the job ends, and the last line names the limit."""
    there = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"] if backend == "c10d" else []
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))"
    done = elastic_agent(*there, "--nproc-per-node", "8", "--tee", "3", script, cwd=tmp_path, code=code)
    assert "Traceback" not in done.err
    assert done.code not in (0, 120), done.err
    assert "oo many open files" in done.last
    assert "ulimit" in done.last


# -- log files and error files -------------------------------------------------------------------------------------


class OneNode:
    """One node with one agent, whose workers report to a desk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.desk = Desk(folder)
        self._nodes: list[ProcessNode] = []

    def start(self, *flags: str, cwd: Path | None = None, **env: str) -> ProcessNode:
        known = {**os.environ, "TEST_NODE": "one", "TEST_DESK": self.desk.path, "OMP_NUM_THREADS": "1"}
        node = ProcessNode("one", ["--standalone", *flags, WORKER], {**known, **env}, cwd or self.folder)
        self._nodes.append(node)
        return node

    def close(self) -> None:
        for node in self._nodes:
            node.end()
        self.desk.close()


@pytest.fixture
def one_node(tmp_path: Path) -> Iterator[OneNode]:
    made = OneNode(tmp_path)
    yield made
    made.close()


GARBAGE = {
    "empty": b"",
    "binary": bytes(range(256)),
    "cut short": b'{"message": {"message": "boom", "extraInfo": {"py_call',
    "a list": b"[1, 2]",
    "deep": b"[" * 100_000,
    "too long": b'{"message": "' + b"x" * (1 << 20) + b'"}',
    "other types": b'{"message": 7, "timestamp": {}}',
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_a_garbage_error_file_does_not_prevent_a_restart(content: bytes, one_node: OneNode) -> None:
    """The job restarts within its budget; the summary has the file's path and what is wrong with it."""
    agent = one_node.start("--max-restarts", "1")
    path = Path()
    for attempt in range(2):
        (worker,) = one_node.desk.wait_world(1, after=attempt)
        assert worker.restarts == attempt
        path = Path(worker.env["TORCHELASTIC_ERROR_FILE"])
        path.write_bytes(content)
        worker.order("exit 3")
    assert agent.wait() == 1
    assert "Traceback" not in agent.text()
    assert f"error file {path}: " in agent.text()


def test_the_agents_error_file_that_cannot_be_written_brings_a_line(one_node: OneNode) -> None:
    """TORCHELASTIC_ERROR_FILE of the agent may be a path that cannot be written: one line more, the same status."""
    agent = one_node.start("--max-restarts", "0", TORCHELASTIC_ERROR_FILE="/gone/error.json")
    one_node.desk.wait_world(1)[0].order("exit 3")
    assert agent.wait() == 1
    assert "cannot write error file /gone/error.json" in agent.text()


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced by a file"])
def test_a_log_directory_lost_during_the_run_is_made_again_or_done_without(replaced: bool, one_node: OneNode) -> None:
    """If it was removed, the next round makes it again; if a file is in its place, workers run without log files."""
    logs = one_node.folder / "logs"
    agent = one_node.start("--max-restarts", "1", "--log-dir", str(logs), "--redirects", "3")
    (worker,) = one_node.desk.wait_world(1)
    subprocess.run(["rm", "-r", str(logs)], check=True)
    if replaced:
        logs.write_text("")
    worker.order("exit 3")
    (again,) = one_node.desk.wait_world(1, after=worker.round)
    again.order("exit 0")
    assert agent.wait() == 0
    assert "Traceback" not in agent.text()
    if replaced:
        assert again.env["TORCHELASTIC_ERROR_FILE"] == ""
        assert agent.text().count(f"cannot make the log directory {logs}") == 1
    else:
        assert Path(again.env["TORCHELASTIC_ERROR_FILE"]).parent.is_dir()


@pytest.mark.parametrize("how", ["--redirects", "--tee"])
def test_a_log_file_that_is_full_loses_output_and_ends_no_worker(how: str, tmp_path: Path) -> None:
    """Without room for logs, tee'd output still reaches the console, one line names the file, and the job succeeds."""
    (tmp_path / "talk.py").write_text(
        "import os, sys\n"
        "for n in range(2000):\n"
        "    try: os.write(1, b'x' * 99 + b'\\n')\n"
        "    except OSError: sys.exit(0 if n else 1)\n"
    )
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))"
    done = elastic_agent(how, "1", "talk.py", cwd=tmp_path, code=code)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    if how == "--tee":
        assert done.out.count("x" * 99 + "\n") == 2000
        assert done.err.count("stdout.log: File too large") == 1


# -- the endpoint --------------------------------------------------------------------------------------------------


def at(port: int, host: str = "127.0.0.1", **conf: object) -> list[str]:
    settings = ",".join(f"{key}={value}" for key, value in {"read_timeout": CONNECT_S, **conf}.items())
    return ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{port}", "--rdzv-conf", settings]


def test_an_endpoint_that_refuses_is_given_up_after_its_timeout(script: str, tmp_path: Path) -> None:
    """No process listens: status 80 once read_timeout is over, with the endpoint."""
    port = free_port()
    done = elastic_agent(*at(port, is_host=0), script, cwd=tmp_path)
    assert_one_line(done, 80, f"127.0.0.1:{port}", "connection refused", "--rdzv-endpoint", within_s=CONNECT_S + 3)


def test_an_endpoint_that_does_not_resolve_is_given_up_after_its_timeout(script: str, tmp_path: Path) -> None:
    """A name that does not resolve may do so later, so it is tried until read_timeout is over."""
    done = elastic_agent(*at(29400, "no-such-host.invalid"), script, cwd=tmp_path)
    assert_one_line(done, 80, "no-such-host.invalid", "does not resolve")


def listener(answer: bytes | None) -> tuple[int, Callable[[], None]]:
    """A server that sends `answer` to each client that has sent something, or never answers: its port, and a function
    that closes it."""
    server = socket.create_server(("127.0.0.1", 0))
    links: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                link, _ = server.accept()
                links.append(link)
                if answer is not None:
                    link.recv(1)
                    link.sendall(answer)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in (*links, server):
            each.close()

    return int(server.getsockname()[1]), end


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "sends nothing"),
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "is not a TCPStore: it answered b'HTTP/1.0'"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "is not a TCPStore: it answered b'SSH-2.0-'"),
    ],
    ids=["silent", "http", "ssh"],
)
def test_a_foreign_server_at_the_endpoint_is_recognised(
    answer: bytes | None, message: str, script: str, tmp_path: Path
) -> None:
    """A listener that never answers, and servers of other kinds; the line has what came from them."""
    port, end = listener(answer)
    try:
        done = elastic_agent(*at(port), script, cwd=tmp_path)
    finally:
        end()
    assert_one_line(done, 80, f"127.0.0.1:{port}", message, "choose another port")


STORE = """
import sys
from datetime import timedelta
from torch.distributed import DistNetworkError, TCPStore
store = None
for line in sys.stdin:
    verb, *words = line.split()
    if verb in ("host", "join"):
        hosting, limit = verb == "host", timedelta(seconds=20)
        store = TCPStore("127.0.0.1", int(words[0]), is_master=hosting, wait_for_workers=False, timeout=limit)
        print("ready", flush=True)
        continue
    if verb == "leave":
        store = None
        print("left", flush=True)
        continue
    if verb == "get":
        print(store.get(words[0]).hex(), flush=True)
        continue
    if verb == "add":
        print(store.add(words[0], int(words[1])), flush=True)
        continue
    try:
        store.set(words[0], bytes.fromhex(words[1]) if len(words) > 1 else b"")
        print(store.check([words[0]]), flush=True)
    except DistNetworkError:
        print("gone", flush=True)  # what was set ended the job, and the store with it
"""


class TorchStore:
    """torch's TCPStore in a separate process, as client or server of one store after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", STORE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def host(self, port: int) -> None:
        assert self._ask(f"host {port}") == "ready"

    def join(self, port: int) -> None:
        assert self._ask(f"join {port}") == "ready"

    def leave(self) -> None:
        assert self._ask("leave") == "left"

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def set(self, key: str, value: bytes) -> None:
        assert self._ask(f"set {key} {value.hex()}") in ("True", "gone")

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(f"add {key} {amount}"))

    def get(self, key: str) -> bytes:
        return bytes.fromhex(self._ask(f"get {key}"))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def foreign() -> Iterator[TorchStore]:
    """One process for all tests, because importing torch takes longer than most of them."""
    made = TorchStore()
    yield made
    made.close()


def test_a_tcpstore_without_an_agent_is_recognised(foreign: TorchStore, script: str, tmp_path: Path) -> None:
    """For another program's TCPStore the line says that no elastic-agent hosts a job there."""
    port = free_port()
    foreign.host(port)
    try:
        done = elastic_agent(*at(port), script, cwd=tmp_path)
    finally:
        foreign.leave()
    assert_one_line(done, 80, f"127.0.0.1:{port}", "no elastic-agent hosts a job there", "choose another port")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_for_an_endpoint_at_once(signum: signal.Signals, script: str, tmp_path: Path) -> None:
    """An agent that waits for a store exits 128+n within 2 s, and nothing is left."""
    flags = at(free_port(), is_host=0, read_timeout=60)
    node = ProcessNode("n", [*flags, script], {**os.environ, "OMP_NUM_THREADS": "1"}, tmp_path)
    try:
        node.wait_text("waiting for 127.0.0.1")
        began = time.monotonic()
        node.terminate(signum)
        assert node.wait(SOON_S) == 128 + signum
        assert time.monotonic() - began < 2.0
        assert node.text().splitlines()[-1].startswith(f"elastic-agent: exit {128 + signum}: ")
    finally:
        node.end()


def test_sigterm_at_any_moment_of_the_start_leaves_no_process(tmp_path: Path) -> None:
    """From the first milliseconds on the signal ends the agent, by its handler or before it has one, without a
    traceback."""
    (tmp_path / "long.py").write_text("import time; time.sleep(1000)\n")
    for wait_s in [step * 0.02 for step in range(16)]:
        node = ProcessNode("n", ["long.py"], dict(os.environ), tmp_path)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                node.process.wait(wait_s)
            began = time.monotonic()
            node.terminate()
            assert node.wait(SOON_S) in (-signal.SIGTERM, 128 + signal.SIGTERM)
            assert time.monotonic() - began < 2.0
            assert "Traceback" not in node.text()
        finally:
            node.end()


# -- what works ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run_id", ["a/b", "../../up", "two words", "100%", "日本語", "line\nbreak", "'\"$(x)`", "x" * 200, "."]
)
def test_any_run_id_works_on_one_node(run_id: str, script: str, tmp_path: Path) -> None:
    """Run ids may have any characters; the job's log directory is always below --log-dir."""
    logs = tmp_path / "logs"
    done = elastic_agent("--rdzv-id", run_id, "--log-dir", str(logs), "--redirects", "1", script, cwd=tmp_path)
    assert done.code == 0, done.err
    (written,) = tmp_path.glob("**/stdout.log")
    assert written.is_relative_to(logs)


def test_two_nodes_meet_under_an_odd_run_id_on_ipv6(script: str, tmp_path: Path) -> None:
    """Slash, space, percent, quotes, line break and non-ASCII in the run id, and an IPv6 endpoint, as typed."""
    flags = [*at(free_port(), "[::1]", read_timeout=30), "--rdzv-id", "ä/b c%\n'"]
    nodes = [ProcessNode(name, [*flags, script], dict(os.environ), tmp_path) for name in "ab"]
    try:
        assert [node.wait() for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.end()


class Static:
    """Agents of a static job of two nodes."""

    def __init__(self, folder: Path) -> None:
        self.desk = Desk(folder)
        self.nodes: list[ProcessNode] = []
        self._folder = folder
        self.port = free_port()

    def start(self, rank: int, *flags: str) -> ProcessNode:
        name = f"n{len(self.nodes)}"
        env = {**os.environ, "TEST_NODE": name, "TEST_DESK": self.desk.path, "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO"}
        args = ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--max-restarts", "1"]
        args += ["--master-port", str(self.port), "--rdzv-conf", "read_timeout=30", *flags, WORKER]
        node = ProcessNode(name, args, env, self._folder)
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for node in self.nodes:
            node.end()
        self.desk.close()


@pytest.fixture
def static(tmp_path: Path) -> Iterator[Static]:
    made = Static(tmp_path)
    yield made
    made.close()


def test_a_static_job_of_two_nodes_runs_and_restarts(static: Static) -> None:
    """Group ranks are the nodes' --node-rank, in the first round and in the next."""
    static.start(1)
    static.start(0)
    world = static.desk.wait_world(2)
    assert [worker.node for worker in world] == ["n1", "n0"]
    world[1].order("exit 4")
    again = static.desk.wait_world(2, after=world[0].round)
    assert [worker.node for worker in again] == ["n1", "n0"]
    for worker in again:
        worker.order("exit 0")
    assert [node.wait() for node in static.nodes] == [0, 0]


def test_a_second_node_0_of_another_job_is_refused(static: Static, script: str, tmp_path: Path) -> None:
    """Two nodes of two jobs have rank 0 and one port: the line for the second has both commands."""
    static.start(0)
    port = static.port
    static.nodes[0].wait_text("of at least 2 nodes joined")
    flags = ["--nnodes", "2", "--node-rank", "0", "--master-port", str(port), "--rdzv-conf", "read_timeout=5"]
    done = elastic_agent(*flags, script, cwd=tmp_path)
    assert_one_line(done, 78, "is taken by a job that differs in its command", "train.py")
    static.nodes[0].terminate()
    assert static.nodes[0].wait() == 128 + signal.SIGTERM


def test_a_node_rank_given_twice_ends_the_job_for_all(static: Static) -> None:
    """Two nodes have the same rank, which is not 0: all nodes exit, and the line has the rank and both nodes."""
    for rank in (0, 1, 1):
        static.start(rank, "--nnodes", "3")
    assert [node.wait() for node in static.nodes] == [2, 2, 2]
    for node in static.nodes:
        last = node.text().splitlines()[-1]
        assert "node-rank" in last
        assert "1" in last
        assert "Traceback" not in node.text()


def test_a_static_node_that_is_killed_while_others_join_may_start_again(static: Static) -> None:
    """Node 1 gets kill -9 and starts again within its lease: its old claim to the rank ends with that, and the job
    begins when the last node is there."""
    first = static.start(0, "--nnodes", "3")
    static.start(1, "--nnodes", "3")
    first.wait_text("2 of at least 3 nodes joined")
    static.nodes[1].vanish()
    static.start(1, "--nnodes", "3")
    first.wait_text("both have --node-rank 1")
    static.start(2, "--nnodes", "3")
    world = static.desk.wait_world(3)
    assert [worker.node for worker in world] == ["n0", "n2", "n3"]
    for worker in world:
        worker.order("exit 0")
    assert [static.nodes[index].wait() for index in (0, 2, 3)] == [0, 0, 0]


# -- store values that are not ours --------------------------------------------------------------------------------


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


class Spoiled:
    """A running job of two nodes on c10d, and a foreign client that writes to its store."""

    def __init__(self, folder: Path, foreign: TorchStore) -> None:
        self.cluster = Cluster("c10d", folder, nnodes="1:2", conf={"beat": 0.3, "lease": 1.5})
        self.endpoint = self.cluster.endpoint
        self.crater = folder / "crater"
        self.foreign = foreign
        try:
            self.a = self.cluster.start("a")
            self.a.wait_text("round 1 ")
            self.b = self.cluster.start("b")
            self.world = self.cluster.desk.wait_world(2)
            self.foreign.join(int(self.endpoint.rpartition(":")[2]))
        except BaseException:
            self.close()
            raise
        self.under = "elastic_agent/contract/1/"

    def garbage(self) -> list[bytes]:
        """Bytes of several kinds, none of which an agent writes."""
        return [b"\xde\xad\xbe\xef", b"hello", b"", b"\x00" * 4096, pickle.dumps(Bomb(self.crater))]

    def spoil(self, key: str, value: bytes) -> None:
        self.foreign.set(key, value)

    def nodes(self) -> list[str]:
        """The identities of the two nodes, from the notifications that they left."""
        head = int(self.foreign.get(self.under + "log/head"))
        return sorted({self.foreign.get(f"{self.under}log/{n}").decode() for n in range(1, head + 1)})

    def version(self) -> int:
        """The newest version announced."""
        return int(self.foreign.get(self.under + "round/head"))

    def assert_goes_on(self) -> None:
        """A worker fails, both nodes run another round, and all succeed; no worker of the old round is left."""
        self.world[0].order("exit 3")
        again = self.cluster.desk.wait_world(2, after=self.world[0].round)
        for worker in again:
            worker.order("exit 0")
        assert [node.wait() for node in (self.a, self.b)] == [0, 0]
        self.assert_clean()

    def assert_ends(self, *parts: str) -> None:
        """Both agents exit 80 within 10 s, with all of `parts` in the last line, and their workers are gone."""
        deadline = time.monotonic() + SOON_S
        for node in (self.a, self.b):
            code = node.wait(max(0.1, deadline - time.monotonic()))
            last = node.text().splitlines()[-1]
            assert code == 80, node.text()
            assert [part for part in parts if part not in last] == [], node.text()
        self.cluster.desk.wait_gone(self.world)
        self.assert_clean()

    def assert_clean(self) -> None:
        """No traceback of ours, and no foreign pickle was loaded."""
        for node in (self.a, self.b):
            assert "Traceback" not in node.text(), node.text()
            assert "mistake" not in node.text(), node.text()
        assert not self.crater.exists()

    def close(self) -> None:
        self.foreign.leave()
        self.cluster.close()


@pytest.fixture
def spoiled(foreign: TorchStore, tmp_path: Path) -> Iterator[Spoiled]:
    made = Spoiled(tmp_path, foreign)
    yield made
    made.close()


def test_garbage_in_keys_that_running_nodes_do_not_need_is_ignored(spoiled: Spoiled) -> None:
    """The job goes on with garbage in records, heartbeats, notifications, old announcements, and keys that only new
    nodes read."""
    version = spoiled.version()
    keys = [f"node/{spoiled.nodes()[0]}", f"beat/{spoiled.nodes()[1]}", "node/stranger", "beat/stranger", "log/1"]
    keys += [f"round/{version}", "round/0", "unheard/of", ""]
    for value in spoiled.garbage():
        for key in keys:
            spoiled.spoil(spoiled.under + key, value)
        for key in ("served", "contract/job", "contract/life", "contract"):
            spoiled.spoil(f"elastic_agent/{key}", value)
        spoiled.spoil("elastic_agent", value)
    spoiled.assert_goes_on()


def test_garbage_in_a_record_that_a_notification_names_is_ignored_with_one_line(spoiled: Spoiled) -> None:
    """The host prints whose record it ignores, once for each notification; the job goes on."""
    for node in (spoiled.nodes()[0], "stranger"):
        spoiled.spoil(f"{spoiled.under}node/{node}", pickle.dumps(Bomb(spoiled.crater)))
        number = spoiled.foreign.add(spoiled.under + "log/head", 1)
        spoiled.spoil(f"{spoiled.under}log/{number}", node.encode())
        spoiled.a.wait_text(f"record of node {node!r} in the store cannot be read and is ignored")
    assert spoiled.a.text().count("cannot be read and is ignored") == 2
    spoiled.assert_goes_on()


def test_garbage_in_numbers_of_later_notifications_is_skipped(spoiled: Spoiled) -> None:
    """A foreign client takes the numbers that would be next; the nodes use later ones."""
    head = int(spoiled.foreign.get(spoiled.under + "log/head"))
    for ahead, value in enumerate(spoiled.garbage(), start=1):
        spoiled.spoil(f"{spoiled.under}log/{head + ahead}", value)
    spoiled.assert_goes_on()


@pytest.mark.parametrize(
    ("key", "value"),
    [("log/head", b"\xde\xad"), ("log/head", b"0"), ("round/head", b""), ("round/head", b"99999999999999999999")],
)
def test_garbage_in_a_counter_ends_every_agent(key: str, value: bytes, spoiled: Spoiled) -> None:
    """Without the counters there is no agreement on a round: all exit 80, with the key."""
    spoiled.spoil(spoiled.under + key, value)
    spoiled.assert_ends(f"key {spoiled.under}{key} holds", "another program writes to this store", "another port")


def test_a_spoiled_host_without_other_nodes_ends_too(foreign: TorchStore, tmp_path: Path) -> None:
    """A host that is alone does not wait for other nodes to read the store: it exits 80 within 10 s, and its worker is
    gone."""
    cluster = Cluster("c10d", tmp_path, nnodes="1")
    try:
        node = cluster.start("a")
        (worker,) = cluster.desk.wait_world(1)
        foreign.join(int(cluster.endpoint.rpartition(":")[2]))
        foreign.set("elastic_agent/contract/1/round/head", b"\xde\xad")
        assert node.wait(SOON_S) == 80
        cluster.desk.wait_gone([worker])
        assert "key elastic_agent/contract/1/round/head holds" in node.text().splitlines()[-1]
        foreign.leave()
    finally:
        cluster.close()


def test_garbage_in_the_next_announcement_ends_every_agent(spoiled: Spoiled) -> None:
    """The key of the coordinator's next announcement holds something else: all exit 80, with the key."""
    number = spoiled.version() + 1
    spoiled.spoil(f"{spoiled.under}round/{number}", pickle.dumps(Bomb(spoiled.crater)))
    spoiled.assert_ends(f"round/{number}", "another program writes to this store", "another port")


def test_garbage_in_a_key_that_only_new_nodes_read_refuses_only_a_new_node(
    spoiled: Spoiled, script: str, tmp_path: Path
) -> None:
    """The host's mark holds something else: a node that arrives exits 80 with what it holds; the others go on."""
    spoiled.spoil("elastic_agent/served", b"\x80\x05 nothing of ours")
    port = int(spoiled.endpoint.rpartition(":")[2])
    done = elastic_agent(*at(port, is_host=0), "--rdzv-id", "contract", script, cwd=tmp_path)
    assert_one_line(done, 80, f"127.0.0.1:{port}", "nothing of ours", "'contract'")
    spoiled.assert_goes_on()


def test_garbage_in_the_jobs_record_refuses_only_a_new_node(spoiled: Spoiled, script: str, tmp_path: Path) -> None:
    """A node that arrives exits 80 with the job's id; the others go on, and at the end the host prints a line too."""
    spoiled.spoil("elastic_agent/contract/job", pickle.dumps(Bomb(spoiled.crater)))
    port = int(spoiled.endpoint.rpartition(":")[2])
    done = elastic_agent(*at(port, is_host=0), "--rdzv-id", "contract", script, cwd=tmp_path)
    assert done.code == 80
    assert "record of job 'contract' cannot be read" in done.err.splitlines()[-1]
    spoiled.assert_goes_on()
    assert "another program changed the job's record in the store" in spoiled.a.text()


def test_a_node_with_another_run_id_is_refused_with_both(spoiled: Spoiled, script: str, tmp_path: Path) -> None:
    """A node of another job exits 80 with both run ids; the job at the endpoint goes on."""
    port = int(spoiled.endpoint.rpartition(":")[2])
    done = elastic_agent(*at(port, is_host=0), "--rdzv-id", "other", script, cwd=tmp_path)
    assert_one_line(done, 80, f"127.0.0.1:{port}", "'contract'", "'other'", "--rdzv-id")
    spoiled.assert_goes_on()
