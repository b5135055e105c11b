"""The scripts of deploy/slurm on a real SLURM: what each ending of the agents brings into the queue.

Agents are played: they write down how they were started, and end with what the test planned.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.outside.slurm_cluster import BOUND_S, SCRIPTS, SlurmCluster

AGENT = """\
#!/bin/bash
# An agent that notes its arguments and ends with the status planned for this start on this node.
# As the agent it takes USR1, though its scripts ignore it at its start: a shell cannot, so it begins anew.
[ -n "$TAKES_USR1" ] || exec env --default-signal=USR1 TAKES_USR1=yes "$0" "$@"
log=$PLAYED/log.$SLURMD_NODENAME
echo "$*" >>"$log"
plan=$PLAYED/plan.$SLURMD_NODENAME
[ -e "$plan" ] || plan=$PLAYED/plan
status=$(sed -n "$(wc -l <"$log")p" "$plan")
if [ "$status" = wait ]; then
    trap 'kill $!; echo saved >>"$PLAYED/saved.$SLURMD_NODENAME"; exit 75' USR1
    echo "$SLURM_JOB_ID" >"$PLAYED/waits.$SLURMD_NODENAME"
    while :; do sleep 1000 & wait $!; done
fi
exit "$status"
"""


class Played:
    """The played agents of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.program = folder / "agent"
        self.program.write_text(AGENT)
        self.program.chmod(0o755)

    def plan(self, *statuses: object, node: str = "") -> None:
        """How agents end, start by start; of this node, or of all others."""
        lines = "".join(f"{status}\n" for status in statuses)
        (self.folder / (f"plan.{node}" if node else "plan")).write_text(lines)

    def starts(self, node: str) -> list[str]:
        """The arguments of each start on this node."""
        log = self.folder / f"log.{node}"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def variables(self) -> dict[str, str]:
        return {"ELASTIC_AGENT": str(self.program), "PLAYED": str(self.folder)}


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return Played(tmp_path / "played")


TWO_NODES = ("--nodes=2",)


def test_one_agent_a_node_with_the_endpoint_from_the_node_list(cluster: SlurmCluster, played: Played) -> None:
    """Each node of the allocation has one agent; they meet at the address of the first, under an id of this start."""
    played.plan(0)
    job = cluster.submit("requeue.sbatch", "train.py", "--lr", "0.1", options=TWO_NODES, **played.variables)
    cluster.wait_end(job)
    port = 20000 + int(job) % 10000
    meeting = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id slurm-{job}-0"
    wanted = f"--nnodes 2 {meeting} --forward-signals USR1 train.py --lr 0.1"
    assert [played.starts(node) for node in cluster.nodes] == [[wanted], [wanted], []]
    assert cluster.state(job) == "COMPLETED"
    assert not list(cluster.home.glob(".elastic-agent*")), "what the scripts kept is removed at the end"


def test_an_array_goes_on_after_75_and_ends_when_the_job_is_done(cluster: SlurmCluster, played: Played) -> None:
    """Elements run one after the other until one ends with 0; the rest is cancelled and starts nothing."""
    played.plan(75, 75, 0)
    job = cluster.submit("array.sbatch", "train.py", options=TWO_NODES, **played.variables)
    cluster.wait_end(job)
    assert len(played.starts("n1")) == 3
    assert sorted(cluster.state(job).split(",")) == ["CANCELLED", "COMPLETED", "FAILED", "FAILED"]


def test_the_kill_switch_ends_a_whole_array(cluster: SlurmCluster, played: Played) -> None:
    """83 is an ending that no element of the array goes on from."""
    played.plan(83)
    job = cluster.submit("array.sbatch", "train.py", options=TWO_NODES, **played.variables)
    cluster.wait_end(job)
    assert len(played.starts("n1")) == 1


def test_a_chain_goes_on_after_75_and_is_cancelled_behind_the_last(cluster: SlurmCluster, played: Played) -> None:
    """Of four jobs that wait for one another two run, and the other two leave the queue; a job of another kind that
    waits for the second is left alone."""
    played.plan(75, 0)
    jobs = cluster.run(str(SCRIPTS / "chain.sh"), "4", "--nodes=2", "--", "train.py", **played.variables).split()
    waiting = ("--parsable", "--job-name=evaluation", f"--dependency=afterany:{jobs[1]}", "--wrap=true")
    evaluation = cluster.run("sbatch", *waiting).strip()
    cluster.wait_end()
    assert len(jobs) == 4
    assert cluster.state(evaluation) == "COMPLETED"
    assert [cluster.state(job) for job in jobs] == ["FAILED", "COMPLETED", "CANCELLED", "CANCELLED"]
    assert len(played.starts("n1")) == 2


def test_a_job_queues_itself_again_after_75(cluster: SlurmCluster, played: Played) -> None:
    """The same job starts again, under another rendezvous id, until it is done."""
    played.plan(75, 0)
    job = cluster.submit("requeue.sbatch", "train.py", options=TWO_NODES, **played.variables)
    cluster.wait(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", job), "the requeue")
    cluster.wait_end(job)
    assert [start.split()[7] for start in played.starts("n1")] == [f"slurm-{job}-0", f"slurm-{job}-1"]
    assert cluster.state(job) == "COMPLETED"


@pytest.mark.campaign
def test_failures_of_hosts_in_a_row_are_queued_again_a_few_times_only(cluster: SlurmCluster, played: Played) -> None:
    """With one retry, the second 76 in a row is the last."""
    played.plan(76, 76, 76)
    variables = {**played.variables, "ELASTIC_AGENT_RETRIES": "1"}
    job = cluster.submit("requeue.sbatch", "train.py", options=TWO_NODES, **variables)
    cluster.wait(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", job), "the requeue")
    cluster.wait_end(job)
    assert len(played.starts("n1")) == 2
    assert cluster.state(job) == "FAILED"
    assert not list(cluster.home.glob(".elastic-agent*")), "the count is removed at the end"


@pytest.mark.campaign
def test_usr1_ahead_of_the_limit_saves_the_job_and_queues_it_again(cluster: SlurmCluster, played: Played) -> None:
    """SLURM's own signal, sent because the limit is near, reaches each agent once; they end with 75, and the job is
    queued again."""
    played.plan("wait", 0)
    options = (*TWO_NODES, "--signal=B:USR1@50", "--time=00:01:00")
    job = cluster.submit("requeue.sbatch", "train.py", options=options, **played.variables)
    cluster.wait(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", job), "the requeue", 2 * BOUND_S)
    cluster.wait_end(job)
    assert [(played.folder / f"saved.{node}").read_text() for node in ("n1", "n2")] == ["saved\n", "saved\n"]
    assert cluster.state(job) == "COMPLETED"


@pytest.mark.campaign
def test_a_bad_node_is_drained_and_the_next_start_has_another(cluster: SlurmCluster, played: Played) -> None:
    """The agent of n2 gives its host up with 71: SLURM gives the job n3 in its place, and n2 to nobody."""
    played.plan(75, 0)
    played.plan(71, node="n2")
    played.plan(0, node="n3")
    variables = {**played.variables, "ELASTIC_AGENT_DRAIN": "yes"}
    job = cluster.submit("requeue.sbatch", "train.py", options=TWO_NODES, **variables)
    cluster.wait(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", job), "the requeue")
    assert "drain" in cluster.run("sinfo", "--noheader", "--nodes=n2", "--format=%T %E")
    cluster.wait_end(job)
    assert [len(played.starts(node)) for node in cluster.nodes] == [2, 1, 1]
    assert cluster.state(job) == "COMPLETED"


def test_watches_look_again_and_again_without_cron(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Each look is a job that has queued the next one, on the same node, by the same name and with the same output."""
    table = tmp_path / "watches.toml"
    text = f'notify = ["exec:true"]\n[[watch]]\nwhat = "disk"\npath = "{tmp_path}"\nthreshold = "1 % free"\n'
    table.write_text(text)
    program = f"{sys.executable} -m elastic_agent.control.watcher"
    variables = {"ELASTIC_AGENT_WATCH": program, "ELASTIC_AGENT_WATCH_EVERY": "1second"}
    options = ("--nodelist=n2", "--output=looks-%j.log", "--job-name=looks")
    first = cluster.submit("watch.sbatch", str(table), "--verbose", options=options, **variables)
    looks = cluster.home / f"looks-{first}.log"
    cluster.wait(lambda: looks.exists() and looks.read_text().count(f"disk {tmp_path}: under") > 1, "the second look")
    cluster.run("scancel", "--name=looks")
    assert "NodeList=n2" in cluster.run("scontrol", "show", "job", str(int(first) + 1))


def test_the_next_look_is_queued_as_this_one_was(tmp_path: Path) -> None:
    """A site may take no job without an account: the first look would be the last."""
    for name, line in (
        ("scontrol", 'printf "   Command=/x/watch.sbatch w.toml\\n   StdOut=/x/a look.out\\n"'),
        ("sbatch", 'printf "%s\\n" "$@" >asked'),
        ("look", "exit 0"),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ELASTIC_AGENT_WATCH": "look", "SLURM_JOB_ID": "7"}
    env |= {"SLURMD_NODENAME": "n1", "SLURM_JOB_NAME": "watch", "SLURM_JOB_ACCOUNT": "physics", "SLURM_JOB_QOS": "low"}
    subprocess.run(["bash", SCRIPTS / "watch.sbatch", "w.toml"], cwd=tmp_path, env=env, check=True, timeout=BOUND_S)
    assert (tmp_path / "asked").read_text().splitlines() == [
        "--begin=now+5minutes", "--nodelist=n1", "--job-name=watch", "--output=/x/a look.out",
        "--account=physics", "--qos=low", "/x/watch.sbatch", "w.toml",
    ]  # fmt: skip


def ended(scripts: Path, tmp_path: Path, scontrol: str) -> subprocess.CompletedProcess[str]:
    """The end of a job with 75 by these scripts, without a cluster: `scontrol` is this line of bash."""
    programs = tmp_path / "programs"
    programs.mkdir(parents=True)
    (programs / "scontrol").write_text(f"#!/bin/bash\n{scontrol}\n")
    (programs / "scontrol").chmod(0o755)
    steps = (
        f'source "{scripts}/functions.sh" || exit\nstatus=75 verdict=again\nrequeue\necho "came back"; exit "$status"'
    )
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path)}
    return subprocess.run(["bash", "-c", steps], capture_output=True, text=True, env=env, check=False, timeout=BOUND_S)


def test_a_requeue_that_slurm_refuses_is_said(tmp_path: Path) -> None:
    """As where the site or an option of sbatch forbids it: nobody must wait for a job that is not in the queue."""
    done = ended(SCRIPTS, tmp_path, "echo 'Requested operation is presently disabled' >&2; exit 1")
    assert "SLURM job 7: the job is not queued again, as SLURM refuses; submit it without --no-requeue" in done.stderr
    assert "is queued again" not in done.stderr
    assert done.returncode == 75
    assert "came back" not in ended(SCRIPTS, tmp_path / "other", "exit 0").stdout


def test_scripts_without_their_table_of_statuses_end_before_the_training(tmp_path: Path) -> None:
    """Who copied only their folder would learn behind the training that nothing of it is queued again."""
    shutil.copytree(SCRIPTS, tmp_path / "slurm")
    done = ended(tmp_path / "slurm", tmp_path, "exit 0")
    assert "exit-statuses; copy the whole directory deploy, and submit again" in done.stderr
    assert done.returncode == 2
