"""A job's command in its record and in refusals: names of arguments, digests of their values, no value of another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.rendezvous.codec import command
from elastic_agent.rendezvous.codec import job as jobs
from elastic_agent.rendezvous.driver import join
from elastic_agent.rendezvous.memory_store import MemoryStore
from elastic_agent.rendezvous.records import JobSpec
from elastic_agent.rendezvous.store import JobMismatch

SALT = b"salt" * 4
KEY = "f00dfeedc0ffee0123456789abcdef01"
COMMAND = (
    "train.py",
    "--lr",
    "0.1",
    "--wandb-api-key",
    KEY,
    "model.depth=12",
    "data.csv",
    "--db=u:pa55@host",
    "-pPa55w0rd",
)
VALUES = ("0.1", KEY, "12", "data.csv", "pa55", "Pa55w0rd")

words = st.text(min_size=1, max_size=12)


def refusal(there: tuple[str, ...], here: tuple[str, ...]) -> str:
    """The line for a node with the command `here` that meets a job with the command `there`."""
    store = MemoryStore()
    join.join(store.host(), JobSpec("job1", there), "id-a", "a")
    with pytest.raises(JobMismatch) as caught:
        join.join(store.guest(), JobSpec("job1", here), "id-b", "b")
    return str(caught.value)


def test_a_jobs_record_holds_no_value_of_an_argument() -> None:
    """Whoever reaches the store can read it: the script and the names of its arguments are there, and nothing else."""
    record = jobs.encode_job(jobs.new_record(JobSpec("job1", COMMAND), "id-a", "a"))
    assert b"train.py --lr" in record
    assert b"--wandb-api-key" in record
    # Four characters and more: what is shorter comes up in a digest by chance.
    assert not [value for value in VALUES if len(value) >= 4 and value.encode() in record]


def test_two_records_of_one_command_have_nothing_of_it_in_common() -> None:
    """A digest found in one job's record says nothing about another's: each is salted."""
    first, second = (jobs.new_record(JobSpec("job1", COMMAND), "id-a", "a") for _ in range(2))
    assert first.digest != second.digest
    assert first.command != second.command
    assert jobs.same_job(first, JobSpec("job1", COMMAND))


def test_a_refused_stranger_reads_no_value_of_the_jobs_arguments() -> None:
    """It reads the script and the names."""
    text = refusal(COMMAND, ("other.py",))
    assert "`--nnodes 1 train.py --lr … --wandb-api-key … model.depth=… …" in text
    assert not [value for value in VALUES if len(value) >= 4 and value in text]


def test_a_refusal_names_the_arguments_that_differ() -> None:
    """Each once, and not those that are the same."""
    other = ("train.py", "--lr", "0.2", "--wandb-api-key", KEY[::-1], "model.depth=12", "more.csv", *COMMAND[7:])
    text = refusal(COMMAND, other)
    assert "differs in its command (--lr, --wandb-api-key, argument 6): it runs" in text


def test_a_refusal_masks_values_that_look_secret() -> None:
    """Also in the node's own command: the last line of an agent is often sent to people and collected in logs."""
    text = refusal(("train.py",), COMMAND)
    assert "train.py --lr 0.1 --wandb-api-key *** model.depth=12 data.csv --db=*** " in text
    assert KEY not in text
    assert "pa55" not in text


def test_many_differences_are_counted() -> None:
    """The line stays short."""
    text = refusal(("train.py",), ("train.py", *(f"--flag{number}" for number in range(20))))
    assert "(--flag0, --flag1, --flag2, --flag3, --flag4, --flag5, --flag6, --flag7 and 12 more)" in text


@pytest.mark.parametrize(
    ("there", "here", "names"),
    [
        (("a.py", "x"), ("b.py", "x"), ("the script",)),
        (("-m", "pkg.a"), ("-m", "pkg.b"), ("the script",)),
        (("a.py", "--betas", "1", "2"), ("a.py", "--betas", "1", "3"), ("--betas",)),
        (("a.py", "--lr", "-0.1"), ("a.py", "--lr", "-1e-3"), ("--lr",)),
        (("a.py", "--quiet"), ("a.py",), ("--quiet",)),
        (("a.py", "-v"), ("a.py", "-vv"), ("-v", "argument 1")),
        (("a.py", "c2VjcmV0=="), ("a.py", "c2VjcmV1=="), ("argument 1",)),
        (("a.py", "--x=1", "p"), ("a.py", "--x=1", "q"), ("argument 2",)),
        (("a.py", "+model=1"), ("a.py", "+model=2"), ("+model",)),
        (("a.py", "--a", "1", "--b", "1"), ("a.py", "--b", "1", "--a", "1"), ()),
    ],
)
def test_what_differs_has_a_name(there: tuple[str, ...], here: tuple[str, ...], names: tuple[str, ...]) -> None:
    """A flag, a setting, the script, or a place."""
    assert set(command.differing(command.outline(there, SALT), command.outline(here, SALT))) == set(names)


@pytest.mark.parametrize(
    ("own", "masked"),
    [
        (("a.py", "--token", "abc"), ("a.py", "--token", "***")),
        (("a.py", "--api_key=abc"), ("a.py", "--api_key=***")),
        (("a.py", "--keys", "a", "b"), ("a.py", "--keys", "***", "***")),
        (("a.py", "hf_abcdefgh12"), ("a.py", "***")),
        (("a.py", "postgres://u:p@h/x"), ("a.py", "***")),
        (("a.py", "--out", "/data/run-2024-01-01/checkpoints"), ("a.py", "--out", "/data/run-2024-01-01/checkpoints")),
        (("a.py", "--num-tokens", "4096"), ("a.py", "--num-tokens", "4096")),
        (("a.py", "--auth", "false"), ("a.py", "--auth", "false")),
    ],
)
def test_what_looks_secret(own: tuple[str, ...], masked: tuple[str, ...]) -> None:
    """By its name, or by itself; numbers and switches never do."""
    assert command.masked(own) == masked


@given(st.lists(words, min_size=1, max_size=8).map(tuple))
def test_any_command_has_an_outline(own: tuple[str, ...]) -> None:
    """As many words, the same for the same salt, without differences to itself."""
    outline = command.outline(own, SALT)
    assert len(outline) == len(command.masked(own)) == len(own)
    assert outline == command.outline(own, SALT)
    assert command.differing(outline, outline) == ()
    assert command.readable(outline)
