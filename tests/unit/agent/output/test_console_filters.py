"""A round's logs: which output goes to which file, and what the console shows."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

from elastic_agent.agent.output.log_dirs import JobLogs
from elastic_agent.agent.spec import LogSpec
from support.consoles import FINISH_S, Console
from support.rigs.round_logs import Begin, open_round, run


def test_redirected_output_is_in_the_file_only(begin: Begin, console: Console) -> None:
    """Bit 1 is stdout, bit 2 is stderr; what is not redirected is shown on the console as written."""
    attempt = open_round(begin(redirects={0: 2}))
    run(attempt, "import sys; print('shown'); print('kept', file=sys.stderr)")
    assert Path(attempt.stderr_files[0]).read_text() == "kept\n"
    assert attempt.stdout_files[0] == ""
    assert (console.out, console.err) == (b"shown\n", b"")


def test_tee_reaches_file_and_console(begin: Begin, console: Console) -> None:
    """The file has the bytes as written, the console has the prefix before each line."""
    attempt = open_round(begin(tee={0: 1, 1: 3}), 2)
    assert run(attempt, "import sys; print('out', sys.argv[1]); print('a\\nb', file=sys.stderr)")
    assert Path(attempt.stdout_files[1]).read_text() == "out 1\n"
    assert Path(attempt.stderr_files[1]).read_text() == "a\nb\n"
    assert sorted(console.out.splitlines()) == [b"[default0]:out 0", b"[default1]:out 1"]
    assert sorted(console.err.splitlines()) == [b"[default1]:a", b"[default1]:b", b"a", b"b"]


def test_stdout_and_stderr_that_share_a_console_keep_their_order(tmp_path: Path) -> None:
    """`2>&1`: what a worker writes to either arrives in the order written, although the agent passes it on."""
    with open(tmp_path / "both", "wb") as both:
        logs = JobLogs(LogSpec(base_dir="/dev/null"), "job", stdout_fd=both.fileno(), stderr_fd=both.fileno())
        attempt = open_round(logs)
        assert run(attempt, "import os\nfor i in range(999): os.write(1 + i % 2, b'%d\\n' % i)")
        logs.close()
    assert (tmp_path / "both").read_bytes().split() == [b"%d" % number for number in range(999)]


def test_ranks_outside_the_filter_do_not_reach_the_console(begin: Begin, console: Console) -> None:
    """--local-ranks-filter: the other ranks' tee'd output is in their files only."""
    attempt = open_round(begin(tee={0: 1, 1: 1}, local_ranks_filter=frozenset({0})), 2)
    assert run(attempt, "import sys; print('out', sys.argv[1])")
    assert console.out == b"[default0]:out 0\n"
    assert Path(attempt.stdout_files[1]).read_text() == "out 1\n"


def test_plain_output_outside_the_filter_goes_nowhere(begin: Begin, console: Console) -> None:
    """Where there is no file, a rank outside the filter writes to /dev/null."""
    attempt = open_round(begin(local_ranks_filter=frozenset({0})), 2)
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in attempt.stdio(1)] == ["/dev/null"] * 2
    assert run(attempt, "import sys; print(sys.argv[1])")
    assert console.out == b"0\n"


def test_every_combination_goes_where_torchrun_sends_it(begin: Begin, tmp_path: Path, console: Console) -> None:
    """Redirects, tee and filter together: the same files, and the same on the console, as torch's DefaultLogsSpecs."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std

    for redirect, tee, shown in itertools.product(range(4), range(4), (None, {0}, {1})):
        theirs = DefaultLogsSpecs(str(tmp_path / "torch"), {0: Std(redirect)}, {0: Std(tee)}, shown).reify(
            {0: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0"}}
        )
        ranks = frozenset(shown or ())
        attempt = open_round(begin(redirects={0: redirect}, tee={0: tee}, local_ranks_filter=ranks))
        before = (len(console.out), len(console.err))
        for fd, written in zip(attempt.stdio(0), (b"o\n", b"e\n"), strict=True):
            os.write(fd, written)
        assert attempt.finish(FINISH_S)
        for text, file, teed, kept, seen in (
            ("o\n", theirs.stdouts[0], theirs.tee_stdouts, attempt.stdout_files[0], console.out[before[0] :]),
            ("e\n", theirs.stderrs[0], theirs.tee_stderrs, attempt.stderr_files[0], console.err[before[1] :]),
        ):
            # torch: no file is the console itself, /dev/null is nowhere, and what is tee'd is read from its file.
            where = (redirect, tee, shown)
            there = "" if file in ("", "/dev/null") else Path(file).name
            assert (Path(kept).name if kept else "") == there, where
            assert not kept or Path(kept).read_text() == text, where
            wanted = f"[default0]:{text}" if 0 in teed else text if not file else ""
            assert seen.decode() == wanted, where


def test_the_prefix_template_has_its_names_replaced(begin: Begin, console: Console) -> None:
    """Role, local rank, rank, host and round are replaced; unknown names stay, and a prefix is one line."""
    template = "${role_name} ${local_rank} ${rank} ${host} ${round}\n${what} $ "
    attempt = open_round(begin(tee={0: 1}, prefix_template=template), number=7)
    run(attempt, "print('x')")
    assert console.out == b"default 0 10 nodehost 7 ${what} $ x\n"


def test_the_prefix_template_has_the_time(begin: Begin, console: Console) -> None:
    """Each line has the time at which it was read, on this host's clock, to the millisecond."""
    attempt = open_round(begin(tee={0: 1}, prefix_template="${time} ${role}: "))
    before = time.time()
    assert run(attempt, "print('x')")
    date, clock, rest = console.out.decode().split(" ", 2)
    shown = time.mktime(time.strptime(f"{date} {clock[:8]}", "%Y-%m-%d %H:%M:%S"))
    assert before - 1 < shown <= time.time()
    assert clock[8] == "."
    assert clock[9:].isdigit()
    assert rest == "default: x\n"


def test_filtered_lines_are_copied(begin: Begin, console: Console) -> None:
    """Lines of tee'd streams that contain a substring are also in one file per attempt, with their prefix."""
    attempt = open_round(begin(tee={0: 3, 1: 1}, stdout_filters=("loss", "acc"), stderr_filters=("bad",)), 2)
    assert run(attempt, "import sys; print('loss 1\\nother\\nacc 2'); print('bad é\\nfine', file=sys.stderr)")
    lines = Path(attempt.path, "filtered_stdout.log").read_text().splitlines()
    assert sorted(lines) == [f"[default{rank}]:{text}" for rank in (0, 1) for text in ("acc 2", "loss 1")]
    assert Path(attempt.path, "filtered_stderr.log").read_text() == "[default0]:bad é\n"
    assert console.out.count(b"other") == 2


# -- the end of stderr -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"tee": {0: 3}}, {"redirects": {0: 3}}, {"base_dir": "/dev/null"}])
def test_the_end_of_stderr_is_kept_with_and_without_a_file(begin: Begin, kind: dict[str, object]) -> None:
    """64 KiB of it, wherever the stream goes."""
    attempt = open_round(begin(**kind))
    assert run(attempt, "import sys; print('out'); print('x' * 99999, file=sys.stderr); sys.stderr.write('é end')")
    tail = attempt.stderr_tail(0)
    assert tail is not None
    assert tail.endswith("x\né end")
    assert len(tail.encode()) == 65536


def test_a_rank_outside_the_filter_has_no_stderr_tail(begin: Begin) -> None:
    """Output that goes nowhere is not read."""
    attempt = open_round(begin(local_ranks_filter=frozenset({1})), 2)
    assert run(attempt, "import sys; print('text', file=sys.stderr)")
    assert (attempt.stderr_tail(0), attempt.stderr_tail(1)) == (None, "text\n")
