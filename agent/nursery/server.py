"""The nursery: the parent of all workers of one agent, in a process of its own.

`guardian.py` forks it and says why there are two. These are modules rather than a script because the bytecode of
modules is cached, and compiling takes as long as the rest of a start. They import nothing but each other and a little
of the standard library: the budget for guardian and nursery is 20 ms and 12 MiB.

The nursery exists so that no process outlives its agent, however the agent ends, and none escapes: it is a
`PR_SET_CHILD_SUBREAPER` (prctl(2)), so whatever loses its parent below it, with or without setsid or double fork,
becomes its child. It makes no decisions. It serves a stream socket to `agent/processes/supervisor.py`;
`agent/processes/protocol.py` describes what crosses it.

What the rest relies on:

* A live descendant always has a live direct child of the nursery above it (or is one), and only the nursery reaps its
  direct children. So "no live direct child" means "nothing left", and each exit that can change that raises SIGCHLD.
* A worker stays a zombie until nothing is left, so its pid, which is also the number of its group, is not reused.
* One thread only, so fork is safe here, and PR_SET_PDEATHSIG, which follows the parent's *thread*, follows the nursery.
"""

from __future__ import annotations

# The C modules: `signal` and `socket` wrap them in enums and selectors, which doubles the time this takes to start.
import _signal  # type: ignore[import-not-found]
import _socket
import os
import select
import time

from .descendants import SIGKILL, SIGTERM, Descendants, commands, handles_signal, send_signal, signal_group
from .frames import READ_BYTES, Frames
from .spawn import Defaults, Launch, Spawner, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .fence import Fence
    from .store_process import StoreProcess
    from .zygote_client import ZygoteClient

KEPT = 3
"""The nursery exits with this where what is left below it is to run on."""
NAMED_MAX = 8
"""Processes that a report names."""
LAST_KILL_S = 10.0
"""How long to wait for killed processes once the agent is gone. A process that the kernel holds longer exits later."""


class Nursery:
    """Carries out the agent's orders until the agent is gone, then ends all that is left."""

    def __init__(
        self, fd: int, agent: int, guardian: int, descendants: Descendants, grace_s: float, descriptors: int
    ) -> None:
        self.descendants = descendants
        self.agent, self.guardian = agent, guardian
        """Their pidfds; -1 if there is none."""
        self.grace_s = grace_s
        """Between SIGTERM and SIGKILL for workers whose agent is gone. 0: SIGKILL at once."""
        self.orphaned = False
        """The agent is gone, and did not close in order."""
        self.socket = _socket.socket(fileno=fd)
        self.frames, self.outbox = Frames(), bytearray()
        self.zygote: ZygoteClient | None = None
        """The client of the process that workers are forked from; only with --preload."""
        self.fence: Fence | None = None
        """Until when workers may run; only on stores that elect."""
        self.presence = -1
        """The agent's, which shows that this process lives; -1: it has none."""
        self.store: StoreProcess | None = None
        """The workers' store of the last round that was served here, from its first client on."""
        self.store_port, self.store_round = -1, ""
        """The socket at which its first client is awaited, and its round; -1: there is none."""
        self.to_come = 0
        """Launches of the current batch that have not been received; nothing is "left" before they were."""
        self.started = False
        self.killing = False
        self.keeping = False
        """What workers left behind runs on."""
        self.ending = False
        """The agent or the guardian is gone: nothing is reported any more."""
        # Signals whose disposition a worker must not inherit: what Python set, and what our parents ignored. Except an
        # ignored SIGHUP, which is how nohup works.
        defaulted = [
            signum
            for signum in _signal.valid_signals()
            if _signal.getsignal(signum) not in (_signal.SIG_DFL, None)
            and (signum, _signal.getsignal(signum)) != (_signal.SIGHUP, _signal.SIG_IGN)
        ]
        self.wake, wakeup = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wakeup, False)
        _signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        self.poll = select.poll()
        for each in (self.wake, fd, agent, guardian):
            if each >= 0:
                self.poll.register(each, select.POLLIN)
        self.spawner = Spawner(descendants, self.poll, Defaults(defaulted, descriptors), self.report)
        self.workers = self.spawner.workers

    # -- the loop ------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Return when agent or guardian is gone: a pidfd or the end of the socket shows it."""
        while self.turn(self.zygote.wait_ms() if self.zygote is not None else None):
            self.reap()

    def end(self) -> None:
        """End all that is left and not kept; return when it is gone, or `LAST_KILL_S` after SIGKILL."""
        self.ending, self.to_come = True, 0
        if self.zygote is not None:
            self.zygote.shut_down()
        for fd in (self.socket.fileno(), self.agent, self.guardian):
            if fd >= 0:
                self.poll.unregister(fd)
        if self.keeping:
            return
        if self.orphaned and self.grace_s > 0:
            self.descendants.signal(self.workers, SIGTERM)
            self.wait_empty(self.grace_s)
        self.killing = True
        self.wait_empty(LAST_KILL_S)
        self.end_store()

    def wait_empty(self, limit_s: float) -> None:
        """Return when nothing is left, or after `limit_s`."""
        until = time.monotonic() + limit_s
        while not self.reap() and (left_s := until - time.monotonic()) > 0:
            self.turn(left_s * 1000)

    def turn(self, timeout_ms: float | None) -> bool:
        """Wait until something happens and handle it. False: the agent is gone, or the guardian."""
        for fd, happened in self.poll.poll(timeout_ms):
            if fd in (self.agent, self.guardian):
                self.orphaned = fd == self.agent
                return False
            if fd == self.wake:
                self.drain()
            elif fd in self.spawner.starting:
                self.spawner.finish_start(self.spawner.starting[fd])
            elif self.zygote is not None and fd == self.zygote.fd:
                self.zygote.receive(happened)
            elif self.fence is not None and fd == self.fence.fd:
                self.look_at_fence()
            elif fd == self.store_port:
                self.start_store()
            elif self.store is not None and fd == self.store.fd:
                self.store.receive()
            elif not self.receive(happened):
                return False
        return True

    def drain(self) -> None:
        """Empty the wake-up pipe."""
        try:
            os.read(self.wake, READ_BYTES)
        except BlockingIOError:
            pass  # an earlier read has taken this signal's byte

    # -- what crosses the socket ---------------------------------------------------------------------------------
    def receive(self, happened: int) -> bool:
        """Receive the agent's orders and carry them out. False: the agent is gone."""
        if happened & select.POLLOUT:
            self.flush()
        if not happened & ~select.POLLOUT:
            return True
        try:
            for fields in self.frames.receive(self.socket, _socket.MSG_DONTWAIT):
                self.carry_out(fields[0], fields[1:])
        except ConnectionResetError:
            self.orphaned = True
            return False
        # An agent that closes in order shuts down one direction only and goes on reading; one that exited, both.
        self.orphaned = self.frames.ended and bool(happened & select.POLLHUP)
        return not self.frames.ended

    def carry_out(self, verb: bytes, fields: list[bytes]) -> None:
        """Carry out one order. Raises ValueError for an unknown verb."""
        if self.zygote is not None and verb in (b"signal", b"forward", b"kill"):
            self.zygote.apply_to_pending(verb, fields)
        order = ORDERS.get(verb)
        if order is None:
            raise ValueError(f"unknown order {verb!r} from the agent; agent and nursery differ in version")
        order(self, fields)

    def kill_group(self, key: str) -> None:
        """SIGKILL the group of one worker."""
        for worker in self.workers.values():
            if worker.key == key:
                signal_group(worker.pid, SIGKILL)

    def kill(self) -> None:
        """SIGKILL all that is below, again and again."""
        self.killing = True
        self.reap()  # now: with nothing left to kill, the order must not apply to the batch behind it

    def end_batch(self) -> None:
        """No more launches of this batch come."""
        self.to_come = 0

    def signal(self, signum: int) -> None:
        """Signal the workers and all that is below."""
        self.descendants.signal(self.workers, signum)

    def forward(self, signum: int) -> None:
        """Signal the workers that handle this signal; report the others, which it would end."""
        for worker in self.workers.values():
            if worker.exited:
                continue
            if handles_signal(worker.pid, signum):
                send_signal(os.kill, worker.pid, signum)
            else:
                self.report("not_forwarded", worker.key, signum)

    def report(self, *words: object) -> None:
        """Send the agent a line, if it is there."""
        if self.ending:
            return
        self.outbox += " ".join(map(str, words)).encode(errors="backslashreplace") + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what the socket has room for, without waiting: an agent that is stopped must not delay the killing."""
        try:
            del self.outbox[: self.socket.send(self.outbox, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass  # poll returns POLLOUT when there is room
        except (BrokenPipeError, ConnectionResetError):
            self.outbox.clear()  # the agent is gone, as the next read will find
        self.poll.register(self.socket.fileno(), select.POLLIN | (select.POLLOUT if self.outbox else 0))

    # -- starting ------------------------------------------------------------------------------------------------
    def start(self, fields: list[bytes], forked: bool) -> None:
        """Start one worker, or have it forked from the zygote."""
        self.to_come, self.started, self.keeping = int(fields[1]), True, False
        launch = Launch(fields[4:], self.frames.take(fields[2:4]))
        launch.key = fields[0].decode()
        if self.fence is not None and self.fence.passed:
            self.report("fork_failed", launch.key, "no worker may start: a newer round may run elsewhere")
            launch.close()
            return
        if not (forked and self.zygote is not None and self.zygote.request(launch)):
            self.spawner.start(launch)

    def set_fence(self, fields: list[bytes]) -> None:
        """From now on workers run only while the fence is not passed, which this memory says."""
        from . import presence
        from .fence import Fence

        memory, self.presence = self.frames.take([b"1", fields[0]])
        if self.presence >= 0:
            presence.enter(self.presence)
        self.fence = Fence(self.descendants.libc, memory)
        self.poll.register(self.fence.fd, select.POLLIN)

    def begin_fenced(self, fields: list[bytes]) -> None:
        """Workers of a new round are about to start."""
        if self.fence is not None and not self.fence.begin(int(fields[0])):
            self.report("fenced")

    def look_at_fence(self) -> None:
        """Kill the workers if the fence is passed: a newer round may begin elsewhere."""
        if self.fence is not None and self.fence.look() and self.started:
            self.report("fenced")
            self.kill()

    def preload(self, fields: list[bytes]) -> None:
        """Start a zygote, which imports the modules. Imported here, so that only jobs with --preload pay for it."""
        from .zygote_client import ZygoteClient

        self.zygote = ZygoteClient(self.spawner, fields)

    # -- what workers left behind ------------------------------------------------------------------------------------
    def name_leftovers(self) -> None:
        """Report what runs below this process beside the workers."""
        named = commands(sorted(self.descendants.below() - set(self.workers)))
        self.report("leftovers", len(named), "\t".join(f"{pid} {name}" for pid, name in named[:NAMED_MAX]))

    def keep(self) -> None:
        """Leave alone, from now on, what the workers left behind."""
        self.keeping = True
        self.name_leftovers()
        if self.descendants.cgroup is not None:
            self.descendants.cgroup.release()

    def serve(self, fields: list[bytes]) -> None:
        """Serve the workers' store of a round on the socket that came along, and end that of the round before."""
        self.end_store()
        [self.store_port] = self.frames.take([b"1"])
        self.store_round = fields[0].decode()
        self.poll.register(self.store_port, select.POLLIN)

    def start_store(self) -> None:
        """Start the process that serves the store, as its first client comes: until then a job pays for a descriptor,
        and no start waits for a server."""
        listener, self.store_port = self.store_port, -1
        self.poll.unregister(listener)
        try:
            from .store_process import StoreProcess

            self.store = StoreProcess(self.spawner, self.store_round, listener)
        except (OSError, ImportError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self.report("store_ended", self.store_round, f"{reason}: it cannot be started")
        finally:
            os.close(listener)

    def end_store(self) -> None:
        """End the workers' store, if one is served, and close its port."""
        if self.store_port >= 0:
            self.poll.unregister(self.store_port)
            os.close(self.store_port)
            self.store_port = -1
        if self.store is not None:
            self.store.close()
            self.store = None

    # -- ending --------------------------------------------------------------------------------------------------
    def reap(self) -> bool:
        """Report workers that exited, reap other children, and kill again what is left if that was ordered. True:
        nothing is left, and the list of workers is cleared."""
        if self.zygote is not None:
            self.zygote.reap()
        for worker in list(self.workers.values()):
            if not worker.exited:
                self.check_exit(worker)
        # With forks pending, one of the others may be a worker that the zygote has not reported yet: its exit status
        # must not be lost.
        busy = self.forks_pending() or (self.descendants.reap(self.workers) and not self.keeping)
        if busy or not all(worker.exited for worker in self.workers.values()):
            if self.killing:
                self.descendants.kill(self.workers)
            return False
        for pid in self.workers:
            os.waitpid(pid, 0)
        self.workers.clear()
        self.killing = False
        if self.started and not self.to_come:
            self.started = False
            if self.fence is not None:
                self.fence.rest()
            self.report("emptied")
        return True

    def forks_pending(self) -> bool:
        """Whether the zygote may have forked workers that are not listed yet."""
        return self.zygote is not None and self.zygote.has_pending()

    def check_exit(self, worker: Worker) -> None:
        """Report a worker if it has exited, without reaping it."""
        info = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return
        if worker.start_pipe in self.spawner.starting:
            self.spawner.finish_start(worker)
        worker.exited = True
        if worker.pid in self.workers:
            code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            self.report("exited", worker.key, worker.pid, code, int(info.si_code == os.CLD_DUMPED))


ORDERS: dict[bytes, Callable[[Nursery, list[bytes]], None]] = {
    b"start": lambda nursery, fields: nursery.start(fields, False),
    b"fork": lambda nursery, fields: nursery.start(fields, True),
    b"no_more": lambda nursery, fields: nursery.end_batch(),
    b"preload": lambda nursery, fields: nursery.preload(fields),
    b"signal": lambda nursery, fields: nursery.signal(int(fields[0])),
    b"forward": lambda nursery, fields: nursery.forward(int(fields[0])),
    b"kill_group": lambda nursery, fields: nursery.kill_group(fields[0].decode()),
    b"kill": lambda nursery, fields: nursery.kill(),
    b"name": lambda nursery, fields: nursery.name_leftovers(),
    b"keep": lambda nursery, fields: nursery.keep(),
    b"hold": lambda nursery, fields: nursery.frames.keep(),
    b"fence": lambda nursery, fields: nursery.set_fence(fields),
    b"begin": lambda nursery, fields: nursery.begin_fenced(fields),
    b"serve": lambda nursery, fields: nursery.serve(fields),
    b"end_store": lambda nursery, fields: nursery.end_store(),
}
"""What the agent may order, by verb; `agent/processes/protocol.py` lists the fields."""


def serve(fd: int, agent: int, guardian: int, descendants: Descendants, grace_s: float, descriptors: int) -> int:
    """Run the nursery in this process; return its exit code when nothing is left, even after an error of its own.
    `agent` is a pidfd, `guardian` the parent's pid, `descriptors` the workers' soft limit of open descriptors."""
    cgroup = descendants.cgroup
    nursery = Nursery(fd, agent, descendants.pidfd(guardian), descendants, grace_s, descriptors)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGCHLD})
    try:
        # Checked after the pidfd was opened, as in the guardian.
        if os.getppid() == guardian:
            nursery.report("nursery", os.getpid(), "" if cgroup is None else cgroup.path)
            nursery.run()
    finally:
        nursery.end()
        if cgroup is not None:
            cgroup.remove()
    return KEPT if nursery.keeping else 0
