"""One job, one record: what it holds, who may join, who is refused, and what that does to the store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.proto import elastic_pb2 as wire
from elastic_agent.rendezvous.codec import fields
from elastic_agent.rendezvous.codec import job as jobs
from elastic_agent.rendezvous.codec.job import JobRecord
from elastic_agent.rendezvous.driver import join
from elastic_agent.rendezvous.memory_store import MemoryStore
from elastic_agent.rendezvous.records import JobSpec, Outcome
from elastic_agent.rendezvous.store import FIRST_EPOCH, JobMismatch, Store, StoreForeign, VersionMismatch

texts = st.text(max_size=60)
counts = st.integers(0, fields.MAX_NUMBER)
records = st.builds(
    JobRecord,
    spec_hash=st.binary(max_size=32),
    command=texts,
    min_nodes=counts,
    max_nodes=counts,
    nproc=texts,
    node=texts,
    name=texts,
    at=texts,
    incarnation=st.integers(1, fields.MAX_NUMBER),
    outcome=st.none() | st.sampled_from(Outcome),
)

SPEC = JobSpec("job1", ("train.py", "--lr", "0.1"), 1, 4)


def mine(spec: JobSpec = SPEC, name: str = "a") -> JobRecord:
    return jobs.new_record(spec, f"id-{name}", name)


def held(store: MemoryStore) -> JobRecord:
    """What the job's record says now."""
    return jobs.decode_job(store.guest().write_job(b"?"))


def ended(store: Store, record: bytes, outcome: Outcome) -> bool:
    """Write how the job ended; whether that is written then."""
    last = jobs.with_outcome(record, outcome)
    return store.write_job(last, over=record) == last


@given(records)
def test_a_job_record_survives_the_round_trip(record: JobRecord) -> None:
    """What the first node writes is exactly what the others read."""
    assert jobs.decode_job(jobs.encode_job(record)) == record


@given(st.binary(max_size=400))
def test_random_bytes_raise_foreign_bytes_and_nothing_else(data: bytes) -> None:
    """Whatever a stranger stores is refused in one line."""
    with pytest.raises(fields.ForeignBytes) as caught:
        jobs.decode_job(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", range(0, len(jobs.encode_job(mine())), 3))
def test_a_truncated_record_is_foreign(cut: int) -> None:
    """No prefix of a record passes for a record."""
    with pytest.raises(fields.ForeignBytes):
        jobs.decode_job(jobs.encode_job(mine())[:cut])


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, run_id="job2"),
        replace(SPEC, command=("other.py", "--lr", "0.1")),
        replace(SPEC, command=("train.py", "--lr", "0.2")),
        replace(SPEC, command=("train.py", "--lr 0.1")),
        replace(SPEC, command=("train.py", "--lr", "0.1", "")),
        replace(SPEC, min_nodes=2),
        replace(SPEC, max_nodes=5),
        replace(SPEC, nproc="gpu"),
    ],
    ids=str,
)
def test_each_part_of_the_spec_counts(other: JobSpec) -> None:
    """Two specs that differ anywhere have different hashes; equal ones have equal hashes."""
    assert jobs.spec_hash(other) != jobs.spec_hash(SPEC)
    assert jobs.spec_hash(replace(SPEC)) == jobs.spec_hash(SPEC)


def test_arguments_that_are_no_unicode_count_too() -> None:
    """A command line may hold any bytes."""
    strange = replace(SPEC, command=("train.py", "caf\udce9"))
    other = replace(SPEC, command=("train.py", "caf\udce8"))
    assert jobs.spec_hash(strange) != jobs.spec_hash(other)
    assert jobs.decode_job(jobs.encode_job(mine(strange))).command == "train.py 'caf?'"


def test_a_command_of_any_length_fits() -> None:
    """Its text is cut, its hash is not."""
    long = replace(SPEC, command=("train.py", "x" * 10**6, "1"))
    other = replace(SPEC, command=("train.py", "x" * 10**6, "2"))
    store = MemoryStore()
    join.join(store.host(), "job1", mine(long))
    with pytest.raises(JobMismatch, match="differs in its command") as caught:
        join.join(store.guest(), "job1", mine(other))
    assert len(str(caught.value)) < 1500


def test_the_first_node_makes_the_job_and_the_others_join_it() -> None:
    """All hold the same record, that of the first."""
    store = MemoryStore()
    first = join.join(store.guest(), "job1", mine(name="a"))
    assert join.join(store.host(), "job1", mine(name="b")) == first
    assert (held(store).name, held(store).incarnation, held(store).outcome) == ("a", 1, None)


def test_who_is_refused_has_written_nothing() -> None:
    """The record stays as it was, and no node and no round is there."""
    store = MemoryStore()
    record = join.join(store.host(), "job1", mine())
    for spec in (replace(SPEC, command=("other.py",)), replace(SPEC, min_nodes=2)):
        for session in (store.host(), store.guest()):
            with pytest.raises(JobMismatch):
                join.join(session, "job1", mine(spec, "b"))
    assert store.guest().write_job(b"?") == record
    assert store.guest().wait_nodes(0, 0.0) == (0, {})
    assert store.guest().wait_round(0, 0.0) is None


def test_a_refusal_names_both_specs_in_one_line() -> None:
    """And what differs between them, who began the job, and what to do."""
    store = MemoryStore()
    join.join(store.host(), "job1", mine())
    other = JobSpec("job1", ("other.py", "two\nlines"), 2, 2, "gpu")
    with pytest.raises(JobMismatch) as caught:
        join.join(store.guest(), "job1", mine(other, "b"))
    text = str(caught.value)
    assert "\n" not in text
    assert "run id 'job1' is taken" in text
    assert "differs in --nnodes and --nproc-per-node and its command" in text
    assert "`--nnodes 1:4 train.py --lr 0.1` (started by a at 20" in text
    assert "`--nnodes 2 --nproc-per-node gpu other.py 'two lines'`" in text
    assert "choose another --rdzv-id" in text


def test_a_record_of_another_version_is_refused_by_name() -> None:
    """Also one whose other fields mean something else by then, and one of a job that has ended."""
    message = wire.JobRecord.FromString(jobs.encode_job(replace(mine(), outcome=Outcome.SUCCEEDED)))
    message.version = 7
    message.incarnation = 0
    store = MemoryStore()
    store.host().write_job(message.SerializeToString())
    with pytest.raises(
        VersionMismatch, match=r"'job1'.*protocol version 7, but this agent uses version 1: run the same"
    ):
        join.join(store.host(), "job1", mine())


@pytest.mark.parametrize("garbage", [b"garbage", b"\xff" * 100, b"x" * 10**6, jobs.encode_job(mine())[:-3]])
def test_a_record_that_is_none_of_ours_is_told(garbage: bytes) -> None:
    """In one line that says whose record, and what to do."""
    store = MemoryStore()
    store.host().write_job(garbage)
    with pytest.raises(StoreForeign, match="record of job 'job1' cannot be read") as caught:
        join.join(store.host(), "job1", mine())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, command=("other.py",))], ids=["rerun", "another job"])
def test_an_ended_job_gives_its_id_free(spec: JobSpec) -> None:
    """The next incarnation begins, for whoever comes first; the others join it; nothing of the old one is there."""
    store = MemoryStore()
    old = store.host()
    record = join.join(old, "job1", mine())
    old.publish_node("n1", b"old")
    old.announce(1, b"old", FIRST_EPOCH)
    assert ended(old, record, Outcome.FAILED)
    assert held(store).outcome is Outcome.FAILED
    host, guest = store.host(), store.guest()
    assert join.join(guest, "job1", mine(spec, "c")) == join.join(host, "job1", mine(spec, "b"))
    assert (held(store).incarnation, held(store).name, held(store).outcome) == (2, "c", None)
    assert host.wait_nodes(0, 0.0) == (0, {})
    guest.publish_node("n2", b"new")
    assert host.wait_nodes(0, 0.0)[1] == {"n2": b"new"}


def test_the_end_may_be_said_again_and_is_never_said_of_another_job() -> None:
    """A writer that never heard the answer repeats it; one that comes long after the end changes nothing."""
    store = MemoryStore()
    first = join.join(store.host(), "job1", mine())
    assert ended(store.host(), first, Outcome.SUCCEEDED)
    assert ended(store.host(), first, Outcome.SUCCEEDED)
    assert not ended(store.host(), first, Outcome.FAILED)
    join.join(store.host(), "job1", mine(name="b"))
    assert not ended(store.host(), first, Outcome.SUCCEEDED)
    assert held(store).outcome is None
