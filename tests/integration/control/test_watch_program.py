"""`elastic-agent-watch` as a program: once, on and on, and its advice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_agent.control.actions.perform import Actor
from elastic_agent.control.actions.stacks import py_spy
from elastic_agent.control.decisions.outbox import SendPace
from elastic_agent.control.notify.channels import channel
from elastic_agent.control.notify.notifier import Notifier
from elastic_agent.control.table.parse import parse_table
from elastic_agent.control.watcher import runner
from support.outside.mounts import dead_mount, tmpfs
from support.outside.web_server import WebServer, web_server

WATCH = [sys.executable, "-m", "elastic_agent.control.watcher"]
WAIT_S = 60.0


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """16 MiB."""
    with tmpfs(tmp_path / "disk", "size=16m") as path:
        yield path


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WATCH, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)


def table(tmp_path: Path, text: str, top: str = "") -> Path:
    file = tmp_path / "w.toml"
    file.write_text(f'job = "job1"\ngather = "0 s"\npause = "0 s"\n{top}\n{text}')
    return file


def full(disk: Path, do: str, more: str = "") -> str:
    return f'[[watch]]\nwhat = "disk"\npath = "{disk}"\nthreshold = "80 % used"\ndo = {do}\n{more}\n'


@contextmanager
def running(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The program on and on; stopped by SIGTERM at the end."""
    with subprocess.Popen([*WATCH, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(WAIT_S)
            finally:
                process.kill()


def wait(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_from_cron_an_alarm_comes_once_and_is_armed_again(tmp_path: Path, disk: Path, web: WebServer) -> None:
    """Full: one message. Still full: none. Free: one that says so. Full again: one more."""
    arguments = (table(tmp_path, full(disk, '["notify"]')), "--once", "--notify", f"http://127.0.0.1:{web.port}/hook")
    told = []
    for megabytes in (15, 15, 1, 15):
        (disk / "a").write_bytes(bytes(megabytes << 20))
        assert call(*arguments).returncode == 0
        told.append([body["text"].partition("\n")[0] for body in web.bodies])
        web.bodies.clear()
    fired = [f"disk {disk}: 93.8 % used, 1.05 MB free (limit 80 % used)"]
    assert told == [
        fired,
        [],
        [f"disk {disk}: no longer over its limit: 6.2 % used, 15.7 MB free (limit 80 % used)"],
        fired,
    ]


def test_from_cron_an_alarm_of_the_disk_that_has_the_state_comes_once(tmp_path: Path, disk: Path) -> None:
    """Full to its last byte, as the state of the run before has the room for that of the next."""
    done = tmp_path / "done"
    file = table(tmp_path, full(disk, f'["exec:sh -c \\"echo x >> {done}\\""]'))
    arguments = (file, "--once", "--state", disk / "state")
    assert call(*arguments).returncode == 0
    with pytest.raises(OSError, match="No space left"):
        (disk / "a").write_bytes(bytes(17 << 20))
    assert [call(*arguments).returncode for _ in range(3)] == [0, 0, 0]
    assert done.read_text() == "x\n"


def test_from_cron_what_cannot_be_kept_is_said_before_it_is_done(tmp_path: Path, disk: Path) -> None:
    """The first run of all finds the disk full: the alarm is worth more than that it comes once."""
    with pytest.raises(OSError, match="No space left"):
        (disk / "a").write_bytes(bytes(17 << 20))
    (disk / "state.lock").touch()
    done = call(
        table(tmp_path, full(disk, '["stop"]')), "--once", "--state", disk / "state", "--kill-switch", tmp_path / "k"
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"elastic-agent-watch: {disk}/state: No space left on device; give --state PATH where there is room\n",
    )
    said, *acts = done.stdout.splitlines()
    assert "give --state PATH where there is room; until then each run does again what it does now" in said
    assert "made the kill switch" in acts[-1]


def test_from_cron_the_time_over_is_counted_over_runs(tmp_path: Path, disk: Path) -> None:
    """With for = 0.1 s, the first run begins the time, and the second, half a second later, is the alarm."""
    file = table(tmp_path, full(disk, '["stop"]', 'for = "0.1 s"'))
    (disk / "a").write_bytes(bytes(15 << 20))
    switch = tmp_path / "kill-switch"
    assert call(file, "--once", "--kill-switch", switch).stdout == ""
    assert not switch.exists()
    assert "made the kill switch" in call(file, "--once", "--kill-switch", switch).stdout
    assert switch.read_text().startswith(f"disk {disk}: 93.8 % used")


def test_from_cron_what_was_not_delivered_is_sent_by_the_next_run(tmp_path: Path, disk: Path, web: WebServer) -> None:
    """The mail server was away for one run, and the alarm is not lost."""
    file = table(tmp_path, full(disk, '["notify"]'))
    (disk / "a").write_bytes(bytes(15 << 20))
    web.status = 500
    slow = "import elastic_agent.control.watcher.cli as cli; cli.CLOSE_S = 2; cli.main()"
    arguments = [str(file), "--once", "--notify", f"http://127.0.0.1:{web.port}/hook"]
    first = subprocess.run([sys.executable, "-c", slow, *arguments], capture_output=True, text=True, check=True)
    assert "fail: the server answered 500" in first.stdout
    web.recover()
    assert call(*arguments).returncode == 0
    assert [body["total"] for body in web.bodies] == [1]


def test_two_runs_at_once_do_not_meet(tmp_path: Path, disk: Path) -> None:
    """The second says so and does nothing."""
    import fcntl

    file = table(tmp_path, full(disk, '["stop"]'))
    (disk / "a").write_bytes(bytes(15 << 20))
    with open(tmp_path / "w.toml.state.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = call(file, "--once", "--kill-switch", tmp_path / "kill-switch")
    assert done.returncode == 0
    assert "another run uses" in done.stdout
    assert not (tmp_path / "kill-switch").exists()


def test_a_disk_that_fills_while_it_is_watched_asks_for_a_checkpoint(tmp_path: Path, disk: Path) -> None:
    """The save switch is made, empty, once; SIGTERM ends the program with 143."""
    file = table(tmp_path, full(disk, '["save"]', 'every = "0.05 s"'), 'save_switch = "save-switch"')
    with running(file, "--verbose") as process:
        assert process.stdout is not None
        assert "under" in process.stdout.readline()
        assert not (tmp_path / "save-switch").exists()
        (disk / "a").write_bytes(bytes(15 << 20))
        wait((tmp_path / "save-switch").exists)
        (tmp_path / "save-switch").unlink()
        assert [process.stdout.readline() for _ in range(5)]
    assert process.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "save-switch").exists()


def test_a_switch_can_be_made_on_a_disk_without_a_free_byte(tmp_path: Path, disk: Path) -> None:
    """Its name takes no block; the reason that would be in it is left out."""
    with pytest.raises(OSError, match="No space left"):
        (disk / "a").write_bytes(bytes(17 << 20))
    done = call(table(tmp_path, full(disk, '["stop"]')), "--once", "--kill-switch", disk / "kill-switch")
    assert "made the kill switch" in done.stdout
    assert (disk / "kill-switch").read_bytes() == b""


def test_a_log_that_cannot_be_written_keeps_nothing_from_being_done(tmp_path: Path, disk: Path) -> None:
    """The program's own output may be on the disk that is full."""
    (disk / "a").write_bytes(bytes(15 << 20))
    file = table(tmp_path, full(disk, '["stop"]'))
    with open("/dev/full", "w") as out:
        subprocess.run([*WATCH, file, "--once", "--kill-switch", tmp_path / "kill-switch"], stdout=out, check=False)
    assert (tmp_path / "kill-switch").exists()


@pytest.fixture
def lasting(tmp_path: Path) -> str:
    """A command that has the pipe `alive` open for as long as it lives."""
    os.mkfifo(tmp_path / "alive")
    path = str(tmp_path / "alive")
    (tmp_path / "tell.py").write_text(
        f"import time; alive = open({path!r}, 'w'); alive.write('x'); alive.flush(); time.sleep(600)"
    )
    return f"exec:{sys.executable} {tmp_path / 'tell.py'}"


def test_a_command_of_an_alarm_that_still_runs_at_the_end_is_killed(
    tmp_path: Path, lasting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would outlive the job that it was about."""
    monkeypatch.setattr(runner, "END_S", 0.1)
    text = f'[[watch]]\nwhat = "memory"\nthreshold = "0 % used"\nevery = "1 min"\ndo = ["{lasting}"]\n'
    read, said = parse_table(text, "w.toml"), list[str]()
    watching = runner.Runner(read, Actor(read, Notifier([], read.pace, "job1", "n1", said.append), "n1", said.append))
    stop = threading.Event()
    thread = threading.Thread(target=watching.run, args=(stop,))
    thread.start()
    try:
        with open(tmp_path / "alive") as alive:
            assert alive.read(1) == "x"
            stop.set()
            watching.wake()
            assert alive.read() == "", "the end of the pipe: whoever had it is gone"
    finally:
        stop.set()
        watching.wake()
        thread.join(WAIT_S)


def test_a_command_of_a_channel_that_still_runs_at_the_end_is_killed(tmp_path: Path, lasting: str) -> None:
    """With what it has started: nobody waits for it any more."""
    told = Notifier([channel(lasting)], SendPace(0, 0), "job1", "n1", lambda line: None)
    told.tell("a", "first")
    with open(tmp_path / "alive") as alive:
        assert alive.read(1) == "x"
        assert told.close(0.1) == {f"exec:{sys.executable}": [("a", "first", 1)]}
        assert alive.read() == "", "the end of the pipe: whoever had it is gone"


def test_a_dead_mount_delays_no_other_watch(tmp_path: Path, web: WebServer) -> None:
    """The first of two watches waits for a minute; the second fires meanwhile, and the program ends meanwhile."""
    (tmp_path / "log").write_text("")
    os.utime(tmp_path / "log", (0, 0))
    hang = '[[watch]]\nwhat = "hang"\npath = "log"\nthreshold = "1 min"\n'
    with dead_mount(tmp_path / "nfs"):
        mount = '[[watch]]\nwhat = "mount"\npath = "nfs"\nthreshold = "60 s"\n'
        file = table(tmp_path, mount + hang, f'notify = "http://127.0.0.1:{web.port}/hook"')
        begun = time.monotonic()
        with running(file):
            web.wait_for(bodies=1)
            assert time.monotonic() - begun < 40
    assert "hang log" in web.bodies[0]["title"]


def test_a_process_that_stands_still_is_told_with_its_stack(tmp_path: Path, web: WebServer) -> None:
    """A child that was stopped in the midst of its work: its log grows old, its stack is saved and in the message."""
    code = (
        "import sys, time\n"
        "def train():\n"
        f"    open({str(tmp_path / 'log')!r}, 'a').write('step')\n"
        "    time.sleep(1000)\n"
        "train()"
    )
    text = '[[watch]]\nwhat = "hang"\npath = "log"\nthreshold = "0.5 s"\nevery = "0.1 s"\nprocess = "my training$"\n'
    text += 'do = ["dump", "notify", "exec:touch executed"]\n'.replace("executed", str(tmp_path / "executed"))
    file = table(tmp_path, text, f'notify = "http://127.0.0.1:{web.port}/hook"')
    with subprocess.Popen([sys.executable, "-c", code, "my training"], env={**os.environ, "RANK": "5"}) as training:
        try:
            wait((tmp_path / "log").exists)
            with running(file):
                training.send_signal(signal.SIGSTOP)
                web.wait_for(bodies=1)
                wait((tmp_path / "executed").exists)
        finally:
            training.kill()
    text = web.bodies[0]["text"]
    assert text.startswith(f"hang log: {tmp_path}/log has not changed for ")
    place = r"train \(<string>:4\)" if py_spy() else r"status: T \(stopped\)"
    assert re.search(rf"stacks in \S+: rank 5 \(pid \d+\) in {place}", text), text
    assert "next: look at the stacks of all ranks" in text
    assert len(list((tmp_path / "stacks").iterdir())) == 1


def test_a_wrong_file_is_one_line_and_status_2(tmp_path: Path) -> None:
    """With the place and what is allowed."""
    done = call(table(tmp_path, '[[watch]]\nwhat = "disk"\npath = "a"\nthreshold = "much"'), "--once")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(
        f"elastic-agent-watch: {tmp_path}/w.toml: watch 1 (disk): threshold = 'much': give '90 % used'"
    )


def test_the_channels_can_be_tried(tmp_path: Path, web: WebServer, disk: Path) -> None:
    """Before the night in which they are needed: each is named, and the status is 1 unless all deliver."""
    file = table(tmp_path, full(disk, '["notify"]'))
    works, refuses = f"http://127.0.0.1:{web.port}/hook", "exec:false"
    done = call(file, "--test", "--notify", works, "--notify", refuses)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith("exec:false: false ended with status 1")
    assert [body["title"] for body in web.bodies] == ["[job1] test"]


def test_the_handbooks_example_on_the_command_line() -> None:
    """40 s every 3 h for 90 days: 720 saves, 8 h, 0.37 %."""
    done = call("advise", "--save", "40s", "--every", "3h", "--run", "90 days", "--between-failures", "24h")
    assert done.returncode == 0, done.stderr
    assert "over 90 days: 720 saves, 8 h, 0.37 %" in done.stdout
    assert "best (Young): save every 44 min" in done.stdout
    assert "a failure costs 1 h 30 min on average, 3 h 0 min at most" in done.stdout


def test_advice_from_what_was_measured(tmp_path: Path) -> None:
    """Steps and their time from checkpoints, failures and their time from the agent's file of events."""
    for step in (100, 200, 300):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
        file = tmp_path / "checkpoints" / f"step-{step}" / "model.pt"
        file.write_bytes(bytes(5000))
        os.utime(file, (1e9 + 6 * step, 1e9 + 6 * step))
    ends = [{"round": 1, "kind": "failure"}, {"round": 1, "kind": "failure"}, {"round": 2, "kind": "arrival"}]
    events = [
        {"what": "announced", "at_s": 43200.0 * at, "ended": ended} for at, ended in enumerate([None, *ends, None])
    ]
    (tmp_path / "events").write_text("".join(json.dumps(event) + "\n" for event in events))
    done = call("advise", "--save", "40", "--checkpoints", tmp_path / "checkpoints", "--events", tmp_path / "events")
    assert "now: a save of 40 s every 10 min (100 steps) costs 6.67 % of the time" in done.stdout, done.stderr
    assert "a failure every 2 days (1 failure in 2 days 0 h)" in done.stdout
    assert "best (Young): save every 1 h 2 min (620 steps)" in done.stdout


def test_the_agent_loads_nothing_of_this_room() -> None:
    """A job without watches pays nothing for them: from its start to its end nothing is imported but what opens the
    socket and keeps the last events."""
    command = [sys.executable, "-X", "importtime", "-m", "elastic_agent", "--standalone", "--no-python", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "elastic_agent.agent" in done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    control = {name for name in loaded if name.startswith("elastic_agent.control")}
    assert control == {"elastic_agent.control", "elastic_agent.control.control_socket", "elastic_agent.control.stream"}


def test_an_agent_that_watches_loads_what_costs_much_only_when_it_is_needed() -> None:
    """`dataclasses` takes 10 ms with `inspect`, HTTP with TLS 10, `tempfile` 5; the start of a job waits for it."""
    code = "import sys; from elastic_agent.control.in_agent.watching import Watching\n"
    code += "made = Watching('hang,disk,inodes,memory,slow,clock,gpu', ['https://example.org/'], 'job', print)\n"
    code += "made.ended(None); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    loaded = set(done.stdout.split())
    assert "elastic_agent.control.readings.filesystems" in loaded
    assert not loaded & {"dataclasses", "inspect", "http.client", "ssl", "tempfile", "random", "urllib.request"}


def test_importing_the_room_loads_no_module_of_it() -> None:
    """Whoever imports it pays for what it uses."""
    code = "import sys; import elastic_agent.control; print([m for m in sys.modules if 'elastic_agent.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.strip() == "['elastic_agent.control']"
