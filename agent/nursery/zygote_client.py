"""The nursery's side of the zygote (`agent/zygote`): has workers forked from it, or starts them plainly, by fork and
exec, wherever that fails.

A launch that waits for a fork is never lost: if the zygote cannot serve, exits or is late, or if all workers are to be
killed, the worker is started plainly. Part of the nursery, and loaded only with --preload.
"""

from __future__ import annotations

import _socket
import os
import select
import time

from .descendants import SIGKILL, SIGSTOP, send_signal, signal_group
from .frames import framed, rights
from .spawn import Launch, Spawner, close_fds, exec_launch

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "zygote")
ZYGOTE_WAIT_S = 60.0
"""How long a worker waits for the zygote before it is started plainly; importing torch from a cold disk takes 20 s."""
REPLACED_MAX = 8
"""How many zygotes are replaced because of a module that cannot be preloaded, before there is none any more."""
READ_BYTES = 1 << 16


class ZygoteClient:
    """One zygote at a time, and the launches that wait for it."""

    def __init__(self, spawner: Spawner, fields: list[bytes]) -> None:
        """`fields`: MODULES PER_ROUND CWD ARGC ARGV... NAME=VALUE..."""
        self.spawner = spawner
        self.per_round = fields[1]
        self.order = [b"preload", *fields[:2], b""]
        self.patient = True
        """Whether workers wait for a zygote that is not ready. Not while it imports what an earlier one has found, and
        not once some have waited in vain: they are started plainly, as they would have been without --preload."""
        self.replaced = 0
        """How often a zygote was replaced because some of its modules could not be preloaded."""
        self.zygote = Launch(fields[2:], (-1, -1))
        self.pid = 0
        self.socket: _socket.socket | None = None
        self.received = b""
        """The beginning of a line whose end has not been received."""
        self.unsent: list[tuple[bytes, list[int], list[int]]] = []
        """What the socket had no room for: bytes, descriptors that go with them, and which of these to close then."""
        self.ready = self.has_forked = False
        """Whether it has imported the modules; whether it has forked a worker."""
        self.waiting: list[Launch] = []
        """Launches that were not requested yet, because the zygote is not ready."""
        self.requested: dict[str, tuple[Launch, int, int]] = {}
        """Launches that were requested and not answered, by key, with our end of the gate, by which the worker is
        released, and of the pipe that reports how its start went."""
        self.pending_signals: list[int] = []
        """Signals ordered since, for the requested workers once they are there."""
        self.dying: list[int] = []
        """Zygotes that were killed and have not exited yet."""
        self.failed = 0
        """The one among them whose end is the reason why nothing is preloaded any more; 0: none."""
        self.until = 0.0
        """When the wait for these launches is over, on the monotonic clock."""
        self.open()

    @property
    def fd(self) -> int:
        """The descriptor to poll; -1 without a zygote."""
        return self.socket.fileno() if self.socket is not None else -1

    # -- the zygote's process ----------------------------------------------------------------------------------------
    def open(self) -> None:
        """Start a zygote. If that fails, the reason is reported, and workers are started plainly."""
        pair: list[_socket.socket] = []
        try:
            pair += _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
            self.pid = os.fork()
        except OSError as error:
            for end in pair:
                end.close()
            self.spawner.report("preload_failed", f"{error.strerror}: cannot start the process that preloads")
            return
        ours, theirs = pair
        if self.pid == 0:
            os.set_inheritable(theirs.fileno(), True)
            set_zygote_variables(self.zygote.env, theirs.fileno())
            defaulted, descendants = self.spawner.defaulted, self.spawner.descendants
            exec_launch(self.zygote, theirs.fileno(), defaulted, descendants, enter=False)
        theirs.close()
        self.socket = ours
        self.spawner.descendants.excluded.add(self.pid)
        self.received, self.has_forked = b"", False
        self.send(framed(self.order), [], [])

    def close(self) -> None:
        """Kill the zygote. Launches that wait for it are started plainly."""
        if self.socket is None:
            return
        self.spawner.poll.unregister(self.fd)
        self.socket.close()
        self.socket = None
        self.drop_unsent()
        # What a module has started is killed, too. A stopped zygote starts no more, and its children are not reaped.
        os.kill(self.pid, SIGSTOP)
        for pid in self.spawner.descendants.below(self.pid):
            send_signal(os.kill, pid, SIGKILL)
        signal_group(self.pid, SIGKILL)
        self.dying.append(self.pid)
        self.ready = False
        for launch, gate, start_pipe in self.requested.values():
            # A worker that was forked already exits when its gate is closed.
            close_fds(gate, start_pipe)
            self.waiting.append(launch)
        self.requested.clear()
        self.start_waiting()

    def reap(self) -> None:
        """Release the zygotes that have exited since they were killed. Never waits: one in an uninterruptible sleep,
        on a file server that does not answer, or held by a debugger, exits when it pleases."""
        for pid in list(self.dying):
            info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
            if info is None:
                continue
            self.dying.remove(pid)
            self.spawner.descendants.excluded.discard(pid)
            if pid == self.failed:
                self.failed = 0
                how = "exited with code" if info.si_code == os.CLD_EXITED else "was killed by signal"
                self.spawner.report("preload_failed", f"the process that preloads {how} {info.si_status}")

    def shut_down(self) -> None:
        """Kill the zygote, and drop the launches that wait for it."""
        for launch, gate, start_pipe in self.requested.values():
            close_fds(gate, start_pipe)
            launch.close()
        for launch in self.waiting:
            launch.close()
        self.requested.clear()
        self.waiting.clear()
        self.close()

    def receive(self, happened: int) -> None:
        """Handle what the zygote sent; send what there is room for."""
        if happened & select.POLLOUT:
            self.flush()
        try:
            data = self.socket.recv(READ_BYTES, _socket.MSG_DONTWAIT) if self.socket is not None else b""
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            if not self.handle(*line.decode().partition(" ")[::2]):
                return
        if not data:
            self.replace()
        elif self.ready:
            waiting, self.waiting = self.waiting, []
            for launch in waiting:
                self.send_request(launch)

    def handle(self, verb: str, rest: str) -> bool:
        """Handle one line from the zygote. False: it was killed for it, and what it sent besides does not count."""
        if verb == "forked":
            key, pid, in_cgroup = rest.split()
            self.release(key, int(pid), in_cgroup=in_cgroup == "1")
        elif verb == "cannot_fork":
            self.close()
            self.spawner.report("preload_failed", rest)
            return False
        elif verb == "again":
            self.exclude(os.fsencode(rest))
            return False
        elif verb == "warning":
            self.spawner.report("preload_warning", rest)
        else:
            self.ready = True
            # No modules at the end of the line: nothing new was learned from a worker.
            if not (self.has_forked and rest.endswith(" ")):
                self.spawner.report("preloaded", rest)
        return True

    def replace(self) -> None:
        """The zygote has exited. Start another one if it has forked a worker and was not importing; the next would only
        exit as well."""
        pid, again = self.pid, self.has_forked and self.ready
        self.close()
        if again:
            self.open()
        else:
            self.failed = pid
            self.reap()

    def exclude(self, modules: bytes) -> None:
        """Start another zygote, which preloads only these modules. What waits is started plainly."""
        self.close()
        self.replaced += 1
        if self.replaced > REPLACED_MAX:
            self.spawner.report("preload_failed", f"{self.replaced} times a module that was left out came back")
            return
        self.patient = False
        self.order = [b"preload", modules, self.per_round, b"again"]
        self.open()

    # -- launches ------------------------------------------------------------------------------------------------------
    def request(self, launch: Launch) -> bool:
        """Have this worker forked, at once or when the zygote is ready. False: it has to be started plainly."""
        if self.socket is None or not (self.ready or self.patient):
            return False
        if not self.waiting and not self.requested:
            self.until = time.monotonic() + ZYGOTE_WAIT_S
            self.pending_signals.clear()
        if self.ready:
            self.send_request(launch)
        else:
            self.waiting.append(launch)
        return True

    def send_request(self, launch: Launch) -> None:
        """Request this worker from the zygote; without descriptors for it, start it plainly."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
        except OSError:
            close_fds(*ends)
            self.spawner.start(launch)  # which reports to the agent if there are too few descriptors for that, too
            return
        gate_read, gate_write, start_read, start_write = ends
        env = [name + b"=" + value for name, value in launch.env.items()]
        cgroup = self.spawner.descendants.open_cgroup()
        has = [b"0" if fd < 0 else b"1" for fd in (*launch.stdio, cgroup)]
        fields = [b"fork", launch.key.encode(), *has, launch.cwd, b"%d" % len(launch.argv), *launch.argv, *env]
        self.requested[launch.key] = launch, gate_write, start_read
        fds = [fd for fd in (*launch.stdio, cgroup) if fd >= 0]
        ours = [gate_read, start_write, *([cgroup] if cgroup >= 0 else [])]
        self.send(framed(fields), [*fds, gate_read, start_write], ours)

    def release(self, key: str, pid: int, *, in_cgroup: bool) -> None:
        """List a worker that was forked and waits at its gate, then let it run."""
        launch, gate, start_pipe = self.requested.pop(key)
        self.has_forked = True
        self.spawner.add(key, pid, start_pipe)
        if not in_cgroup:
            self.spawner.descendants.enter_cgroup(pid)
        launch.close()
        for signum in self.pending_signals:
            signal_group(pid, signum)  # all signals are blocked in it until it is released
        try:
            os.write(gate, b"g")
        except BrokenPipeError:
            pass  # it was killed at the gate, as its exit will report
        os.close(gate)

    def has_pending(self) -> bool:
        """Whether the zygote may have forked workers that it has not reported yet."""
        return bool(self.waiting or self.requested)

    def wait_ms(self) -> float | None:
        """How long the nursery may poll before the next call; None: without limit. Launches whose wait is over are
        started plainly now."""
        if not self.has_pending():
            return None
        left_s = self.until - time.monotonic()
        if left_s > 0:
            return left_s * 1000
        if self.requested:
            text = f"the process that preloads has not answered for {ZYGOTE_WAIT_S:g} s, so another one takes its place"
            self.spawner.report("preload_warning", f"{text}, and these workers are started plainly")
            self.close()
            self.open()
        else:
            self.patient = False  # or each round would wait as long
            text = f"the imports are not over after {ZYGOTE_WAIT_S:g} s, so workers are started plainly until they are"
            self.spawner.report("preload_warning", text)
            self.start_waiting()
        return None

    def start_waiting(self) -> None:
        """Start plainly what waits for the zygote to be ready."""
        waiting, self.waiting = self.waiting, []
        for launch in waiting:
            self.spawner.start(launch)

    def apply_to_pending(self, verb: bytes, fields: list[bytes]) -> None:
        """Extend an order for all workers, before it is carried out, to those that are not listed yet."""
        self.start_waiting()
        if self.requested and verb == b"kill":
            self.close()
            self.open()
        elif verb == b"signal":
            self.pending_signals.append(int(fields[0]))
        else:
            for key in self.requested:
                self.spawner.report("not_forwarded", key, int(fields[0]))  # it cannot have a handler yet

    # -- sending -------------------------------------------------------------------------------------------------------
    def send(self, data: bytes, fds: list[int], close_then: list[int]) -> None:
        """Send these bytes with these descriptors, without ever waiting for the zygote; close `close_then` once it is
        done."""
        self.unsent.append((data, fds, close_then))
        self.flush()

    def flush(self) -> None:
        """Send what the socket has room for."""
        if self.socket is None:
            return
        try:
            while self.unsent:
                data, fds, close_then = self.unsent[0]
                sent = self.socket.sendmsg([data], rights(fds), _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
                if sent < len(data):
                    self.unsent[0] = data[sent:], [], close_then
                else:
                    close_fds(*self.unsent.pop(0)[2])
        except BlockingIOError:
            pass  # poll returns POLLOUT when there is room
        except (BrokenPipeError, ConnectionResetError):
            self.drop_unsent()  # the zygote has exited, as the next read will find
        self.spawner.poll.register(self.fd, select.POLLIN | (select.POLLOUT if self.unsent else 0))

    def drop_unsent(self) -> None:
        """Close the descriptors of what will not be sent any more."""
        for _, _, close_then in self.unsent:
            close_fds(*close_then)
        self.unsent.clear()


def set_zygote_variables(env: dict[bytes, bytes], fd: int) -> None:
    """Change a worker's environment into one in which Python becomes a zygote that serves `fd`."""
    own = env.get(b"PYTHONPATH")
    env[b"PYTHONPATH"] = os.fsencode(FOLDER) + (b":" + own if own else b"")
    env[b"ELASTIC_AGENT_ZYGOTE"] = b"%d" % fd + (b"" if own is None else b" PYTHONPATH")
