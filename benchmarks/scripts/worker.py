"""The worker of the benchmarks: it reports its own milestones through a FIFO.

`worker.py MODE`, where MODE is
  plain   reports and waits for commands;
  reduce  imports torch, does one all_reduce with gloo, then waits for commands;
  train   the same, then all_reduces every 20 ms, so that it fails when a peer is lost, as a training script does;
  print:N waits for the command `go`, prints N lines of 100 bytes one by one, then waits for commands;
  block:N the same in writes of 64 KiB, as a program with a buffered stdout makes them.

Each report is one line of `key=value` words on the FIFO `$BENCH_DIR/events`; its time `t` is CLOCK_MONOTONIC in
seconds. Each worker takes commands from a FIFO of its own, `$BENCH_DIR/commands.PID`: `exit N` leaves at once.

A line is `L<rank>:<number, nine digits>:`, then as many x as make it 100 bytes with its end; `benchmarks/logs.py` looks
for each of them.
"""

from __future__ import annotations

import os
import sys
import time

STARTED = time.monotonic()  # before this line only modules are imported that the interpreter has loaded already

REDUCE_EVERY_S = 0.02
GLOO_TIMEOUT_S = 120
LINE_BYTES = 100
BLOCK_BYTES = 1 << 16


def report(event: str, at: float | None = None, **fields: str | int) -> None:
    """Write one line to the harness. It is shorter than PIPE_BUF, so lines of several workers never mix."""
    moment = time.monotonic() if at is None else at
    line = f"event={event} t={moment:.7f} pid={os.getpid()}" + "".join(f" {k}={v}" for k, v in fields.items())
    os.write(EVENTS, line.encode() + b"\n")


def next_command(commands: int) -> bytes:
    """Block until a command arrives; the harness sends the next one only after this one was answered."""
    received = b""
    while not received.endswith(b"\n"):
        received += os.read(commands, 4096)
    return received.strip()


def obey(commands: int) -> None:
    """Block until the command to exit arrives, then exit without running anything else."""
    status = int(next_command(commands).removeprefix(b"exit "))
    report("exiting")
    os._exit(status)


def reduce_once() -> None:
    """Join the process group and all_reduce. Raises RuntimeError when the sum is not the world's size."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=GLOO_TIMEOUT_S))
    ones = torch.ones(1024)
    dist.all_reduce(ones)
    if ones[0].item() != dist.get_world_size():
        raise RuntimeError(f"all_reduce of ones gave {ones[0].item()} in a world of {dist.get_world_size()}")


def train() -> None:
    """All_reduce until a peer is lost or the command to exit arrives."""
    import torch
    import torch.distributed as dist

    ones = torch.ones(1024)
    while True:
        dist.all_reduce(ones.fill_(1.0))
        time.sleep(REDUCE_EVERY_S)


def print_lines(rank: str, count: int) -> None:
    """One print for each line, as most scripts log."""
    pad = "x" * (LINE_BYTES - len(f"L{rank}:{0:09d}:\n"))
    for number in range(count):
        print(f"L{rank}:{number:09d}:{pad}")


def write_blocks(rank: str, count: int) -> None:
    """Writes of 64 KiB, as a program with a buffered stdout makes them."""
    pad = "x" * (LINE_BYTES - len(f"L{rank}:{0:09d}:\n"))
    block = bytearray()
    for number in range(count):
        block += f"L{rank}:{number:09d}:{pad}\n".encode()
        if len(block) >= BLOCK_BYTES:
            write_all(block[:BLOCK_BYTES])
            del block[:BLOCK_BYTES]
    write_all(block)


def write_all(data: bytearray) -> None:
    while data:
        del data[: os.write(1, data)]


def main() -> None:
    env = os.environ
    path = os.path.join(env["BENCH_DIR"], f"commands.{os.getpid()}")
    os.mkfifo(path)
    commands = os.open(path, os.O_RDWR)  # also for writing, since an open for reading alone would block
    report("first", STARTED, node=env["BENCH_NODE"], rank=env["RANK"], local=env["LOCAL_RANK"], world=env["WORLD_SIZE"])
    mode, _, count = sys.argv[1].partition(":")
    if count:
        next_command(commands)
        report("writing")
        (print_lines if mode == "print" else write_blocks)(env["RANK"], int(count))
        report("written")
    elif mode != "plain":
        reduce_once()
        report("reduced")
    if mode == "train":
        import threading

        threading.Thread(target=obey, args=(commands,), daemon=True).start()
        train()
    obey(commands)


EVENTS = os.open(os.path.join(os.environ["BENCH_DIR"], "events"), os.O_WRONLY)

if __name__ == "__main__":
    main()
