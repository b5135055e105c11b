"""The nursery's side of the zygote (`zygote/`): has workers forked from it, and started plainly wherever that fails.

Whoever waits for a fork is never lost: when the zygote cannot serve, or has died, or is late, or when everybody is to
be killed, the worker is started by fork and exec as without a zygote. Part of the nursery, and loaded only with
--preload.
"""

from __future__ import annotations

import _socket
import os
import select
import time

from .descendants import SIGKILL, SIGSTOP, send, strike_group
from .frames import framed, rights
from .spawn import Launch, Spawner, become, shut

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "zygote")
PATIENCE_S = 60.0
"""How long a worker waits for the zygote before it is started plainly; importing torch from a cold disk takes 20 s."""
READ_BYTES = 1 << 16


class ZygoteClient:
    """One zygote at a time, and the workers that wait for it."""

    def __init__(self, spawner: Spawner, fields: list[bytes]) -> None:
        """`fields`: MODULES PER_ROUND CWD ARGC ARGV... NAME=VALUE..."""
        self.spawner = spawner
        self.order = framed([b"preload", *fields[:2]])
        self.zygote = Launch(fields[2:], (-1, -1))
        self.pid = 0
        self.socket: _socket.socket | None = None
        self.heard = b""
        self.unsent: list[tuple[bytes, list[int], list[int]]] = []
        """What the zygote had no room for: bytes, descriptors that go with them, and which of these we close then."""
        self.ready = self.served = False
        """Whether it has imported; whether a worker was forked from it."""
        self.waiting: list[Launch] = []
        """Not asked for yet, as the zygote is not ready."""
        self.asked: dict[str, tuple[Launch, int, int]] = {}
        """Asked for, by key, with our ends of the gate that lets the worker go and the pipe that says how it went."""
        self.missed: list[int] = []
        """Signals that those asked for should have had since."""
        self.until = 0.0
        """When those who wait have waited long enough, on the monotonic clock."""
        self.open()

    @property
    def fd(self) -> int:
        return self.socket.fileno() if self.socket is not None else -1

    # -- the zygote's life -------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Start a zygote; without one, everybody is started plainly."""
        pair: list[_socket.socket] = []
        try:
            pair += _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
            self.pid = os.fork()
        except OSError as error:
            for end in pair:
                end.close()
            self.spawner.report("unpreloaded", f"{error.strerror}: cannot start the process that preloads")
            return
        ours, theirs = pair
        if self.pid == 0:
            os.set_inheritable(theirs.fileno(), True)
            paused(self.zygote.env, theirs.fileno())
            become(self.zygote, theirs.fileno(), self.spawner.inherited, self.spawner.descendants, apart=True)
        theirs.close()
        self.socket = ours
        self.spawner.descendants.spared.add(self.pid)
        self.heard, self.served = b"", False
        self.send(self.order, [], [])

    def close(self) -> str:
        """End the zygote; return how it ended. Who waits for it is started plainly."""
        if self.socket is None:
            return ""
        self.spawner.poll.unregister(self.fd)
        self.socket.close()
        self.socket = None
        self.drop()
        # What a module has started goes with it. Stopped, it starts no more, and who dies is not reaped.
        os.kill(self.pid, SIGSTOP)
        for pid in self.spawner.descendants.below(self.pid):
            send(os.kill, pid, SIGKILL)
        strike_group(self.pid, SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.spawner.descendants.spared.discard(self.pid)
        self.ready = False
        for launch, gate, report in self.asked.values():
            # Where it is forked already, it now learns that nobody wants it.
            shut(gate, report)
            self.waiting.append(launch)
        self.asked.clear()
        waiting, self.waiting = self.waiting, []
        for launch in waiting:
            self.spawner.start(launch)
        return f"the process that preloads {'was killed by signal' if code < 0 else 'exited with code'} {abs(code)}"

    def dismiss(self) -> None:
        """End the zygote, and start nobody any more."""
        for launch, gate, report in self.asked.values():
            shut(gate, report)
            launch.close()
        for launch in self.waiting:
            launch.close()
        self.asked.clear()
        self.waiting.clear()
        self.close()

    def hear(self, happened: int) -> None:
        """Take what the zygote sent, and have room for."""
        if happened & select.POLLOUT:
            self.flush()
        try:
            data = self.socket.recv(READ_BYTES, _socket.MSG_DONTWAIT) if self.socket is not None else b""
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        *lines, self.heard = (self.heard + data).split(b"\n")
        for line in lines:
            verb, _, rest = line.decode().partition(" ")
            if verb == "forked":
                key, pid = rest.split()
                self.deliver(key, int(pid))
            elif verb == "unfit":
                self.close()
                self.spawner.report("unpreloaded", rest)
                return
            else:
                self.spawner.report("preloaded" if verb == "ready" else "note", rest)
                self.ready = self.ready or verb == "ready"
        if not data:
            self.lose()
        elif self.ready:
            waiting, self.waiting = self.waiting, []
            for launch in waiting:
                self.ask(launch)

    def lose(self) -> None:
        """The zygote is dead. One that was of use is replaced; who dies without would only die again."""
        said, how = self.heard.decode(errors="replace"), self.close()
        if self.served:
            self.open()
        else:
            self.spawner.report("unpreloaded", said or how)

    # -- launches ------------------------------------------------------------------------------------------------------
    def take(self, launch: Launch) -> bool:
        """Have this worker forked; False: it has to be started plainly."""
        if self.socket is None:
            return False
        if not self.waiting and not self.asked:
            self.until = time.monotonic() + PATIENCE_S
            self.missed.clear()
        if self.ready:
            self.ask(launch)
        else:
            self.waiting.append(launch)
        return True

    def ask(self, launch: Launch) -> None:
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
        except OSError:
            shut(*ends)
            self.spawner.start(launch)  # which tells the agent if descriptors are short for that too
            return
        gate, let_go, report, tell = ends
        env = [name + b"=" + value for name, value in launch.env.items()]
        has = [b"0" if fd < 0 else b"1" for fd in launch.stdio]
        words = [b"fork", launch.key.encode(), *has, launch.cwd, b"%d" % len(launch.argv), *launch.argv, *env]
        self.asked[launch.key] = launch, let_go, report
        self.send(framed(words), [*(fd for fd in launch.stdio if fd >= 0), gate, tell], [gate, tell])

    def deliver(self, key: str, pid: int) -> None:
        """A worker has been forked and waits at its gate."""
        launch, gate, report = self.asked.pop(key)
        self.served = True
        self.spawner.adopt(key, pid, report)
        self.spawner.descendants.admit(pid)
        launch.close()
        for signum in self.missed:
            strike_group(pid, signum)  # it has all signals blocked yet, and sees them when it is let go
        try:
            os.write(gate, b"g")
        except BrokenPipeError:
            pass  # it was killed before it began, as its exit will say
        os.close(gate)

    def expecting(self) -> bool:
        """Whether workers may be there that have not been told of yet."""
        return bool(self.waiting or self.asked)

    def wait_ms(self) -> float | None:
        """How long the nursery may wait for something to happen; None: for ever. Who waited too long is started now."""
        if not self.expecting():
            return None
        left_s = self.until - time.monotonic()
        if left_s > 0:
            return left_s * 1000
        self.hurry()
        if self.asked:
            self.close()
            self.open()
        return None

    def hurry(self) -> None:
        """Start plainly who waits."""
        waiting, self.waiting = self.waiting, []
        for launch in waiting:
            self.spawner.start(launch)

    def overtake(self, verb: bytes, fields: list[bytes]) -> None:
        """An order for all workers is about to be carried out, and holds for those, too, who are not there yet."""
        self.hurry()
        if self.asked and verb == b"kill":
            self.close()
            self.open()
        elif verb == b"signal":
            self.missed.append(int(fields[0]))
        else:
            for key in self.asked:
                self.spawner.report("unheard", key, int(fields[0]))  # it cannot have a handler yet

    # -- sending -------------------------------------------------------------------------------------------------------
    def send(self, data: bytes, fds: list[int], lent: list[int]) -> None:
        """Send these bytes with these descriptors, without ever waiting for the zygote; close those `lent` then."""
        self.unsent.append((data, fds, lent))
        self.flush()

    def flush(self) -> None:
        if self.socket is None:
            return
        try:
            while self.unsent:
                data, fds, lent = self.unsent[0]
                sent = self.socket.sendmsg([data], rights(fds), _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
                if sent < len(data):
                    self.unsent[0] = data[sent:], [], lent
                else:
                    shut(*self.unsent.pop(0)[2])
        except BlockingIOError:
            pass  # POLLOUT will tell
        except (BrokenPipeError, ConnectionResetError):
            self.drop()  # the zygote is dead, as the next read will find
        self.spawner.poll.register(self.fd, select.POLLIN | (select.POLLOUT if self.unsent else 0))

    def drop(self) -> None:
        for _, _, lent in self.unsent:
            shut(*lent)
        self.unsent.clear()


def paused(env: dict[bytes, bytes], fd: int) -> None:
    """Change a worker's environment into one in which Python becomes a zygote that serves `fd`."""
    own = env.get(b"PYTHONPATH")
    env[b"PYTHONPATH"] = os.fsencode(FOLDER) + (b":" + own if own else b"")
    env[b"ELASTIC_AGENT_ZYGOTE"] = b"%d" % fd + (b"" if own is None else b" PYTHONPATH")
