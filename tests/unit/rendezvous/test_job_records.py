"""The job's record: its encoding, which nodes may join, which are refused, and what a refusal changes in the store."""

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
    digest=st.binary(max_size=48),
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


def own_record(spec: JobSpec = SPEC, name: str = "a") -> JobRecord:
    return jobs.new_record(spec, f"id-{name}", name)


def joined(store: Store, spec: JobSpec = SPEC, name: str = "a") -> bytes:
    """The job's record, which the node with this name has created or joined."""
    return join.join(store, spec, f"id-{name}", name)


def stored(store: MemoryStore) -> JobRecord:
    """The job's record in the store."""
    return jobs.decode_job(store.guest().write_job(b"?"))


def write_outcome(store: Store, record: bytes, outcome: Outcome) -> bool:
    """Write how the job ended in place of `record`; whether the store holds that afterwards."""
    last = jobs.with_outcome(record, outcome)
    return store.write_job(last, over=record) == last


@given(records)
def test_a_job_record_survives_the_round_trip(record: JobRecord) -> None:
    """What the first node writes is exactly what the others read."""
    assert jobs.decode_job(jobs.encode_job(record)) == record


@given(st.binary(max_size=400))
def test_random_bytes_raise_foreign_bytes_and_nothing_else(data: bytes) -> None:
    """Whatever another program stores is refused in one line."""
    with pytest.raises(fields.ForeignBytes) as caught:
        jobs.decode_job(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", range(0, len(jobs.encode_job(own_record())), 3))
def test_a_truncated_record_is_foreign(cut: int) -> None:
    """No prefix of a record decodes."""
    with pytest.raises(fields.ForeignBytes):
        jobs.decode_job(jobs.encode_job(own_record())[:cut])


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
    """Two specs that differ anywhere have different digests; equal ones have equal digests."""
    record = own_record()
    assert not jobs.same_job(record, other)
    assert jobs.same_job(record, replace(SPEC))


def test_arguments_that_are_not_unicode_count_too() -> None:
    """A command line may hold any bytes."""
    strange = replace(SPEC, command=("train.py", "caf\udce9"))
    other = replace(SPEC, command=("train.py", "caf\udce8"))
    record = jobs.decode_job(jobs.encode_job(own_record(strange)))
    assert jobs.same_job(record, strange)
    assert not jobs.same_job(record, other)


def test_a_command_of_any_length_fits() -> None:
    """The text in the record is cut; the hash covers all of it."""
    long = replace(SPEC, command=("train.py", "x" * 10**6, "1"))
    other = replace(SPEC, command=("train.py", "x" * 10**6, "2"))
    store = MemoryStore()
    joined(store.host(), long)
    with pytest.raises(JobMismatch, match="differs in its command") as caught:
        joined(store.guest(), other)
    assert len(str(caught.value)) < 1500


def test_the_first_node_creates_the_job_and_the_others_join_it() -> None:
    """All get the same record, that of the first."""
    store = MemoryStore()
    first = joined(store.guest(), name="a")
    assert joined(store.host(), name="b") == first
    assert (stored(store).name, stored(store).incarnation, stored(store).outcome) == ("a", 1, None)


def test_a_refused_node_has_written_nothing() -> None:
    """The record stays as it was, and there is no node record and no announcement."""
    store = MemoryStore()
    record = joined(store.host())
    for spec in (replace(SPEC, command=("other.py",)), replace(SPEC, min_nodes=2)):
        for session in (store.host(), store.guest()):
            with pytest.raises(JobMismatch):
                joined(session, spec, "b")
    assert store.guest().write_job(b"?") == record
    assert store.guest().wait_nodes(0, 0.0) == (0, {})
    assert store.guest().wait_round(0, 0.0) is None


def test_a_refusal_names_both_specs_in_one_line() -> None:
    """It also names what differs between them, which node started the job, and what to do."""
    store = MemoryStore()
    joined(store.host())
    other = JobSpec("job1", ("other.py", "two\nlines"), 2, 2, "gpu")
    with pytest.raises(JobMismatch) as caught:
        joined(store.guest(), other, "b")
    text = str(caught.value)
    assert "\n" not in text
    assert "run id 'job1' is taken" in text
    assert "differs in --nnodes and --nproc-per-node and its command (the script, argument 1, --lr): it" in text
    assert "`--nnodes 1:4 train.py --lr …` (started by a at 20" in text
    assert "`--nnodes 2 --nproc-per-node gpu other.py 'two lines'`" in text
    assert "choose another --rdzv-id" in text


def test_a_record_of_another_version_is_refused_by_name() -> None:
    """Also if its other fields have another meaning in that version, and if its job has ended."""
    message = wire.JobRecord.FromString(jobs.encode_job(replace(own_record(), outcome=Outcome.SUCCEEDED)))
    message.version = 7
    message.incarnation = 0
    store = MemoryStore()
    store.host().write_job(message.SerializeToString())
    with pytest.raises(
        VersionMismatch, match=r"'job1'.*protocol version 7, but this agent uses version 6: run the same"
    ):
        joined(store.host())


@pytest.mark.parametrize("garbage", [b"garbage", b"\xff" * 100, b"x" * 10**6, jobs.encode_job(own_record())[:-3]])
def test_a_record_that_cannot_be_read_is_an_error(garbage: bytes) -> None:
    """One line names the job and what to do."""
    store = MemoryStore()
    store.host().write_job(garbage)
    with pytest.raises(StoreForeign, match="record of job 'job1' cannot be read") as caught:
        joined(store.host())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, command=("other.py",))], ids=["rerun", "another job"])
def test_the_run_id_of_an_ended_job_is_free(spec: JobSpec) -> None:
    """The first node to join begins the next incarnation, the others join it; nothing of the old one is visible."""
    store = MemoryStore()
    old = store.host()
    record = joined(old)
    old.publish_node("n1", b"old")
    old.announce(1, b"old", FIRST_EPOCH)
    assert write_outcome(old, record, Outcome.FAILED)
    assert stored(store).outcome is Outcome.FAILED
    host, guest = store.host(), store.guest()
    assert joined(guest, spec, "c") == joined(host, spec, "b")
    assert (stored(store).incarnation, stored(store).name, stored(store).outcome) == (2, "c", None)
    assert host.wait_nodes(0, 0.0) == (0, {})
    guest.publish_node("n2", b"new")
    assert host.wait_nodes(0, 0.0)[1] == {"n2": b"new"}


def test_the_outcome_may_be_written_again_but_not_into_the_record_of_another_job() -> None:
    """A writer whose call was not answered repeats it; one that writes long after the end changes nothing."""
    store = MemoryStore()
    first = joined(store.host())
    assert write_outcome(store.host(), first, Outcome.SUCCEEDED)
    assert write_outcome(store.host(), first, Outcome.SUCCEEDED)
    assert not write_outcome(store.host(), first, Outcome.FAILED)
    joined(store.host(), name="b")
    assert not write_outcome(store.host(), first, Outcome.SUCCEEDED)
    assert stored(store).outcome is None
