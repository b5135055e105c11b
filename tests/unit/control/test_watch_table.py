"""The file of watches: what is read, and errors that name file, watch, key, value and what is allowed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.control.in_agent.usual_watches import USUAL, table_of
from elastic_agent.control.in_agent.watching import next_step
from elastic_agent.control.notify.channels import channel
from elastic_agent.control.table.kinds import KINDS
from elastic_agent.control.table.parse import check_actions, parse_table, read_table
from elastic_agent.control.table.quantities import Dimension, quantity, size_b, size_text, time_s
from elastic_agent.control.table.watch import Watch
from elastic_agent.control.watcher.cli import described
from elastic_agent.rendezvous.failures import Ending, EndKind
from elastic_agent.rendezvous.records import Outcome, RoundPhase
from support.builders import FINAL, announcement
from support.source_tree import ROOT

AGAIN = {Outcome.FAILED, Outcome.JOIN_TIMED_OUT, Outcome.ABANDONED, Outcome.PREEMPTED}
DISK = """
[[watch]]
what = "disk"
path = "checkpoints"
threshold = "12 hours left"
every = "60 s"
for = "5 min"
do = ["notify", "save"]
"""


def one(text: str) -> Watch:
    [watch] = parse_table(text, "w.toml").watches
    return watch


def error(text: str) -> str:
    """The one line that the table is refused with."""
    with pytest.raises(UsageError) as raised:
        parse_table(text, "w.toml")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_watch_says_what_where_when_and_what_to_do(tmp_path: Path) -> None:
    """Each key of the example is understood, in seconds, with its path below the file's directory."""
    file = tmp_path / "w.toml"
    file.write_text(DISK)
    [watch] = read_table(str(file)).watches
    assert (watch.what, watch.path, watch.do) == ("disk", str(tmp_path / "checkpoints"), ("notify", "save"))
    assert (watch.every_s, watch.rule.for_s, watch.rule.again_s) == (60, 300, 0)
    assert watch.threshold is not None
    assert (watch.threshold.value, watch.threshold.side) == (12 * 3600, "left")


def test_what_is_read_can_be_said() -> None:
    """`--check` shows each watch on a line."""
    said = described(one(DISK))
    assert said == "watch 1: disk checkpoints at '12 hours left', every 60 s, for 300 s: notify, save"


def test_the_example_of_the_page_is_what_the_page_says_it_is() -> None:
    """Who copies it gets these watches; the file of its password alone is theirs to write."""
    page = (ROOT / "docs" / "guardrails.md").read_text()
    example, _, rest = page.partition("    notify =")[2].partition("    $ elastic-agent-watch watches.toml --check\n")
    table = parse_table("notify =" + example.replace("\n    ", "\n"), "watches.toml")
    check_actions(table)
    said = [line.strip() for line in rest.partition("    $")[0].splitlines()]
    assert [described(watch) for watch in table.watches] == said
    assert channel(table.notify[0]).name == "smtps://mail.example.org"


def test_two_watches_of_one_thing_are_told_apart() -> None:
    """Their thresholds are in their names, and their numbers if these are equal too."""
    table = parse_table(DISK + DISK.replace("12 hours left", "90 % used") + DISK, "w.toml")
    titles = [watch.title for watch in table.watches]
    assert titles == [
        "disk checkpoints (12 hours left) #1",
        "disk checkpoints (90 % used)",
        "disk checkpoints (12 hours left) #3",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            DISK.replace("12 hours left", "12 parsecs"),
            "w.toml: watch 1 (disk): threshold = '12 parsecs': give '90 % used'",
        ),
        (DISK.replace("12 hours left", "110 % used"), "threshold = '110 % used': give '90 % used', '10 % free'"),
        (DISK.replace('"60 s"', '"often"'), "watch 1 (disk): every = 'often': give a time of at least 0.01 s and at"),
        (
            DISK.replace('"60 s"', '"1000000 days"'),
            "every = '1000000 days': give a time of at least 0.01 s and at most 36",
        ),
        (
            "pause = '9e9 days'\n" + DISK,
            "w.toml: pause = '9e9 days': give a time of at least 0 s and at most 3650 days",
        ),
        ("[[watch]]\nwhat='quota'\nthreshold='9 % used'\ncommand=''", "command = '': give a command that prints a"),
        (DISK.replace('"60 s"', "60"), "watch 1 (disk): every = 60: give a text in quotes"),
        (
            DISK.replace("path", "paht"),
            "watch 1 (disk): paht = 'checkpoints': no such key here; did you mean 'path'? there are again, do",
        ),
        (DISK.replace('path = "checkpoints"', ""), "watch 1 (disk): path is missing: give a path, absolute or below"),
        (DISK.replace('"save"', '"explode"'), "watch 1 (disk): do = ['notify', 'explode']: give one or several of"),
        (DISK.replace('"disk"', '"disc"'), "w.toml: watch 1: what = 'disc': did you mean 'disk'? give 'disk' or"),
        ("[[watches]]\nwhat = 'disk'", "no such key here; did you mean 'watch'? there are dumps"),
        (DISK + DISK.replace('"5 min"', '"-1 s"'), "w.toml: watch 2 (disk): for = '-1 s': give a time"),
        ("[[watch]]\nwhat = 'job'", "watch 1 (job): job is missing: give job or process"),
        ("[[watch]]\nwhat = 'job'\njob='a'\nthreshold='1'", "threshold = '1': give none: a watch of this kind has no"),
        ("[[watch]]\nwhat = 'job'\nprocess='('", "process = '(': give a regular expression; "),
        (
            "[[watch]]\nwhat='hang'\npath='a'\nthreshold='1 h'\ndo='dump'",
            "process is missing: give a regular expression",
        ),
        (
            "[[watch]]\nwhat='gpu'\nthreshold='hot'",
            "give '90 C', '90 % used', '2 GB free', 'throttled', 'ecc', 'xid' or 'lost'",
        ),
        ("[[watch]]\nwhat='clock'\nthreshold='2 s'\nreference='here'", "reference = 'here': give 'ntp://HOST' or an"),
        (DISK + '\nname = "a\\u001bb"', "name = 'a\\x1bb': give a text of one line"),
        ("watch = 3", "w.toml: no watches; begin each with a line [[watch]]"),
        ("", "w.toml: no watches"),
        ("what =", "w.toml: not TOML: "),
    ],
)
def test_errors_say_where_and_what_is_allowed(text: str, said: str) -> None:
    """One line, with which somebody can mend the file."""
    assert said in error(text)


def test_an_action_without_its_place_is_refused() -> None:
    """`save` without a save switch would be found out only in the night."""
    with pytest.raises(UsageError, match="do = 'notify' needs notify = ") as raised:
        check_actions(parse_table(DISK, "w.toml"))
    assert str(raised.value).startswith("w.toml: watch 1 (disk): ")


def test_an_error_about_channels_shows_none_of_them() -> None:
    """They may hold secrets."""
    assert "hunter2" not in error('notify = [1, "https://host/hunter2"]\n' + DISK)
    assert "hunter2" not in error('notfy = "https://host/hunter2"\n' + DISK)


@pytest.mark.parametrize("names", ["hang,dsk", "disc"])
def test_a_name_that_is_nearly_a_usual_watch_is_no_file(names: str) -> None:
    """The usual ones are named, and which may be meant."""
    with pytest.raises(UsageError, match="is no usual watch; did you mean 'disk'\\? there are hang, disk, ") as raised:
        table_of(names)
    assert str(raised.value).startswith(f"--watch {names}: ")


def test_a_file_may_begin_with_the_mark_of_its_encoding(tmp_path: Path) -> None:
    """As editors of other systems write it."""
    (tmp_path / "w.toml").write_bytes(b"\xef\xbb\xbf" + DISK.encode())
    assert [watch.what for watch in read_table(str(tmp_path / "w.toml")).watches] == ["disk"]


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """With its name, and why."""
    with pytest.raises(UsageError, match=r"absent\.toml: cannot be read: No such file"):
        read_table(str(tmp_path / "absent.toml"))


@pytest.mark.parametrize("what", KINDS)
def test_every_kind_of_watch_says_what_to_do_next(what: str) -> None:
    """In one line, for somebody who was just woken."""
    assert len(KINDS[what].next_step) > 10
    assert "\n" not in KINDS[what].next_step


@pytest.mark.parametrize("outcome", Outcome)
def test_every_end_of_a_job_says_what_to_do_next(outcome: Outcome) -> None:
    """A failure that forbids a restart says that another start will not help."""
    closed = replace(announcement(RoundPhase.CLOSED, 1, ()), outcome=outcome)
    said = next_step(closed)
    assert said
    assert ("queue the job again" in said) is (outcome in AGAIN)
    failed = replace(closed, ended=Ending(1, EndKind.FAILURE, "rank 0 failed", failure=FINAL))
    assert ("will not help" in next_step(failed)) is (outcome is Outcome.FAILED)


@pytest.mark.parametrize("what", KINDS)
def test_every_example_in_an_error_is_allowed(what: str) -> None:
    """Who copies what the error offers gets a watch."""
    for form in KINDS[what].forms:
        assert KINDS[what].threshold(form.example) is not None
    for word in (*KINDS[what].words, *([KINDS[what].default] if KINDS[what].default else [])):
        assert KINDS[what].threshold(word) is not None


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("200 GB", 200e9, Dimension.SIZE),
        ("1.5GiB", 1.5 * 2**30, Dimension.SIZE),
        ("5 min", 300, Dimension.TIME),
        ("90days", 90 * 86400, Dimension.TIME),
        ("90 %", 90, Dimension.PERCENT),
        ("4 cores", 4, Dimension.CORES),
        ("85 C", 85, Dimension.CELSIUS),
        ("100000", 100000, Dimension.COUNT),
    ],
)
def test_quantities(text: str, value: float, dimension: Dimension) -> None:
    """Sizes are of 1000 with B and of 1024 with iB; m alone is no unit."""
    assert quantity(text) == (value, dimension, "")
    assert quantity("5 m") is None


def test_times_and_sizes_refuse_each_other() -> None:
    """5 GB are no time."""
    assert time_s("5 GB") is None
    assert size_b("5 s") is None
    assert size_text(3.14159e9) == "3.14 GB"


@pytest.mark.parametrize("name", sorted(USUAL))
def test_usual_watches_have_names(name: str) -> None:
    """Each is a table that an agent can run as it is."""
    table = table_of(name)
    check_actions(table, inside=True)
    assert {watch.what for watch in table.watches} == {name}


def test_several_usual_watches_are_one_table() -> None:
    """With commas between."""
    assert [watch.what for watch in table_of("hang, slow").watches] == ["hang", "slow"]
    with pytest.raises(UsageError, match=r"^--watch hang,all: 'all' is no usual watch; there are hang, "):
        table_of("hang,all")


def test_outside_of_an_agent_a_watch_needs_to_be_told_more() -> None:
    """Whose workers, and it cannot restart them."""
    for keys, said in (
        ("what = 'hang'", "path is missing"),
        ("what = 'slow'", "process is missing"),
        ("what = 'hang'\npath = 'log'\ndo = ['restart']", "do = "),
    ):
        assert said in error(f"[[watch]]\n{keys}")
        parse_table(f"[[watch]]\n{keys}", "w.toml", inside=True)


def test_what_concerns_the_whole_job_is_watched_by_one_node() -> None:
    """By its kind, unless the file says otherwise."""
    text = "[[watch]]\nwhat = 'quota'\ncommand = 'echo 9%'\nthreshold = '9 % used'\n"
    table = f"{text}{text}of = 'node'\n[[watch]]\nwhat = 'memory'\nthreshold = '9 % used'\nof = 'job'\n"
    assert [watch.whole_job for watch in parse_table(table, "w", inside=True).watches] == [True, False, True]
    assert not parse_table(text, "w").watches[0].whole_job


@pytest.mark.parametrize(
    ("table", "asks", "of_job"),
    [
        ('what = "hang"', True, False),
        ('what = "slow"', True, True),
        ('what = "slow"\nof = "node"', False, False),
        ('what = "clock"', True, True),
        ('what = "clock"\nreference = "ntp://time"', False, False),
        ('what = "memory"\nthreshold = "90 % used"\ndo = ["dump"]', False, False),
        ('what = "disk"\nthreshold = "90 % used"', False, False),
    ],
)
def test_an_agent_asks_other_nodes_for_what_they_compare_only(table: str, asks: bool, of_job: bool) -> None:
    """Others cost it no thread and no connection. What all nodes are asked for one of them asks."""
    [watch] = parse_table(f"[[watch]]\n{table}", "w.toml", inside=True).watches
    assert (watch.asks_nodes, watch.whole_job) == (asks, of_job)


def test_without_an_agent_a_clock_needs_a_reference() -> None:
    """There is no other node to compare it with."""
    with pytest.raises(UsageError, match="reference"):
        parse_table('[[watch]]\nwhat = "clock"', "w.toml")
