"""The nursery: the parent of all workers of one agent, in a process of its own.

`guardian.py` forks it and says why there are two. Modules rather than a script, because the bytecode of modules is
cached, and compiling takes as long as all the rest of a start. They import nothing but each other and a little of the
standard library: 20 ms and 12 MiB are what the pair may cost.

It exists so that no process outlives its agent, whatever kills the agent, and so that none escapes: it is a
`PR_SET_CHILD_SUBREAPER` (prctl(2)), so whatever loses its parent below it, setsid or double fork or not, becomes its
child. It decides nothing. It serves a stream socket to `agent/processes/supervisor.py`, which describes what crosses
it.

What the rest relies on:

* A live descendant always has a live direct child of ours above it (or is one), and nobody but us reaps our direct
  children. So "no live direct child" is "nothing left", and each death that could change that raises SIGCHLD here.
* A worker is left a zombie until nothing is left, so its pid, the number of its group, means nobody else till then.
* One thread only, so fork is safe here and PR_SET_PDEATHSIG, which follows the parent's *thread*, means us.
"""

from __future__ import annotations

# The C modules: `signal` and `socket` wrap them in enums and selectors, which doubles the time this takes to start.
import _signal  # type: ignore[import-not-found]
import _socket
import os
import select
import time

from .descendants import SIGKILL, SIGTERM, Descendants, handles_signal, send, strike_group
from .frames import READ_BYTES, Frames
from .spawn import Launch, Spawner, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .zygote_client import ZygoteClient

LAST_KILL_S = 10.0
"""How long to wait for killed processes once the agent is gone. What a kernel holds longer dies when it lets go."""


class Nursery:
    """Obeys the agent until it is gone, then ends all that is left."""

    def __init__(self, fd: int, agent: int, guardian: int, descendants: Descendants, grace_s: float) -> None:
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
        """Where workers are forked with modules imported; only with --preload."""
        self.to_come = 0
        """Launches of the current batch that are still on their way; nothing is "left" before they came."""
        self.started = False
        self.killing = False
        self.alone = False
        # Signals whose disposition a worker must not inherit: what Python set, and what our parents ignored. But an
        # ignored SIGHUP is what nohup is.
        inherited = [
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
        self.spawner = Spawner(descendants, self.poll, inherited, self.say)
        self.workers = self.spawner.workers

    # -- the loop ------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Return when agent or guardian is gone: a pidfd or the end of the socket says so."""
        while self.turn(self.zygote.wait_ms() if self.zygote is not None else None):
            self.reap()

    def end(self) -> None:
        """End all that is left; return when it is gone, or `LAST_KILL_S` after SIGKILL."""
        self.alone, self.to_come = True, 0
        if self.zygote is not None:
            self.zygote.dismiss()
        for fd in (self.socket.fileno(), self.agent, self.guardian):
            if fd >= 0:
                self.poll.unregister(fd)
        if self.orphaned and self.grace_s > 0:
            self.descendants.strike(self.workers, SIGTERM)
            self.outlast(self.grace_s)
        self.killing = True
        self.outlast(LAST_KILL_S)

    def outlast(self, limit_s: float) -> None:
        """Return when nothing is left, or when time is up."""
        until = time.monotonic() + limit_s
        while not self.reap() and (left_s := until - time.monotonic()) > 0:
            self.turn(left_s * 1000)

    def turn(self, timeout_ms: float | None) -> bool:
        """Wait for something to happen and take note of it. False: the agent is gone, or the guardian."""
        for fd, happened in self.poll.poll(timeout_ms):
            if fd in (self.agent, self.guardian):
                self.orphaned = fd == self.agent
                return False
            if fd == self.wake:
                self.drain()
            elif fd in self.spawner.starting:
                self.spawner.settle(self.spawner.starting[fd])
            elif self.zygote is not None and fd == self.zygote.fd:
                self.zygote.hear(happened)
            elif not self.hear(happened):
                return False
        return True

    def drain(self) -> None:
        try:
            os.read(self.wake, READ_BYTES)
        except BlockingIOError:
            pass  # a signal whose byte an earlier read has taken

    # -- what crosses the socket ---------------------------------------------------------------------------------
    def hear(self, happened: int) -> bool:
        """Take what the agent sent and obey it. False: the agent is gone."""
        if happened & select.POLLOUT:
            self.flush()
        if not happened & ~select.POLLOUT:
            return True
        try:
            for fields in self.frames.receive(self.socket, _socket.MSG_DONTWAIT):
                self.obey(fields[0], fields[1:])
        except ConnectionResetError:
            self.orphaned = True
            return False
        # Who closes in order shuts one direction only and listens on; who dies is gone in both.
        self.orphaned = self.frames.ended and bool(happened & select.POLLHUP)
        return not self.frames.ended

    def obey(self, verb: bytes, fields: list[bytes]) -> None:
        if self.zygote is not None and verb in (b"signal", b"forward", b"kill"):
            self.zygote.overtake(verb, fields)
        if verb in (b"start", b"fork"):
            self.start(fields, verb == b"fork")
        elif verb == b"preload":
            self.preload(fields)
        elif verb == b"signal":
            self.descendants.strike(self.workers, int(fields[0]))
        elif verb == b"forward":
            self.forward(int(fields[0]))
        elif verb == b"kill_group":
            for worker in self.workers.values():
                if worker.key == fields[0].decode():
                    strike_group(worker.pid, SIGKILL)
        elif verb == b"kill":
            self.killing = True
            self.reap()  # now: with nothing left to kill, the order must not reach the batch behind it
        else:
            raise ValueError(f"the nursery does not know the verb {verb!r}; agent and nursery differ in version")

    def forward(self, signum: int) -> None:
        """Signal the workers that have come to handle it; the others would end of it."""
        for worker in self.workers.values():
            if worker.exited:
                continue
            if handles_signal(worker.pid, signum):
                send(os.kill, worker.pid, signum)
            else:
                self.say("unheard", worker.key, signum)

    def say(self, *words: object) -> None:
        if self.alone:
            return
        self.outbox += " ".join(map(str, words)).encode(errors="backslashreplace") + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what the agent has room for, and never wait: an agent that stands still must not stop the killing."""
        try:
            del self.outbox[: self.socket.send(self.outbox, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass  # POLLOUT will tell
        except (BrokenPipeError, ConnectionResetError):
            self.outbox.clear()  # the agent is gone, as the next read will find
        self.poll.register(self.socket.fileno(), select.POLLIN | (select.POLLOUT if self.outbox else 0))

    # -- starting ------------------------------------------------------------------------------------------------
    def start(self, fields: list[bytes], forked: bool) -> None:
        """Start one worker, or have it forked from the zygote."""
        self.to_come, self.started = int(fields[1]), True
        launch = Launch(fields[4:], self.frames.take(fields[2:4]))
        launch.key = fields[0].decode()
        if not (forked and self.zygote is not None and self.zygote.take(launch)):
            self.spawner.start(launch)

    def preload(self, fields: list[bytes]) -> None:
        """Have modules imported ahead, for workers to be forked from where they are. Who does not ask does not pay."""
        from .zygote_client import ZygoteClient

        self.zygote = ZygoteClient(self.spawner, fields)

    # -- ending --------------------------------------------------------------------------------------------------
    def reap(self) -> bool:
        """Report workers that exited, bury strays, go on killing. True: nothing is left, and the books are closed."""
        for worker in list(self.workers.values()):
            if not worker.exited:
                self.check(worker)
        strays = [pid for pid in self.descendants.children() if pid not in self.workers]
        # Among strays may be workers that the zygote has not told of yet, and their exit is not to be thrown away.
        busy = self.unborn() or [pid for pid in strays if os.waitpid(pid, os.WNOHANG)[0] == 0]
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
            self.say("emptied")
        return True

    def unborn(self) -> bool:
        return self.zygote is not None and self.zygote.expecting()

    def check(self, worker: Worker) -> None:
        """Learn of a worker's exit without reaping it."""
        info = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return
        if worker.report in self.spawner.starting:
            self.spawner.settle(worker)
        worker.exited = True
        if worker.pid in self.workers:
            code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            self.say("exited", worker.key, worker.pid, code, int(info.si_code == os.CLD_DUMPED))


def serve(fd: int, agent: int, guardian: int, descendants: Descendants, grace_s: float) -> None:
    """The process: serve, and leave nobody behind, not even after an error of our own. `agent` is a pidfd, `guardian`
    the pid of our parent."""
    cgroup = descendants.cgroup
    nursery = Nursery(fd, agent, descendants.pidfd(guardian), descendants, grace_s)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGCHLD})
    try:
        # Asked after the pidfd, as in the guardian.
        if os.getppid() == guardian:
            nursery.say("nursery", os.getpid(), "" if cgroup is None else cgroup.path)
            nursery.run()
    finally:
        nursery.end()
        if cgroup is not None:
            cgroup.remove()
