"""LaunchConfig: what its fields mean, and which values are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.agent.spec import Rotation
from elastic_agent.launcher.config import values
from elastic_agent.launcher.config.config import LaunchConfig
from support.rigs.plans import planned, refusal


def test_defaults_are_torchruns() -> None:
    """LaunchConfig() is a torchrun command line without flags, except for three restarts, as in torch's
    LaunchConfig."""
    spec = planned().workers
    assert (spec.role, spec.restarts.max_restarts, spec.grace_s, spec.signals) == ("default", 3, 30.0, (15, 2, 1, 3))
    assert (spec.count_workers(), spec.logs.base_dir, spec.logs.redirects, spec.logs.tee) == (1, None, {0: 0}, {0: 0})


@pytest.mark.parametrize(
    ("field", "variable", "read"),
    [
        ("shutdown_timeout", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", lambda done: done.workers.grace_s),
        ("exit_barrier_timeout", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", lambda done: done.rendezvous.exit_barrier_s),
    ],
)
def test_timeouts_come_from_the_field_then_the_variable(field: str, variable: str, read: Any) -> None:
    """The field counts before torch's variable, and that before the default; 0 is a value; an error names its
    source."""
    assert read(planned({variable: "7"})) == 7.0
    assert read(planned({variable: "7"}, **{field: 0})) == 0.0
    assert f"{variable} is 'soon'" in refusal({variable: "soon"})
    assert f"{field} is -1" in refusal(**{field: -1})


@pytest.mark.parametrize(
    ("env", "fields", "threads"),
    [
        ({}, {"nproc_per_node": 2}, "1"),
        ({}, {"nproc_per_node": 1}, None),
        ({"OMP_NUM_THREADS": "4"}, {"nproc_per_node": 2}, "4"),
        ({}, {"nproc_per_node": 2, "env": {"OMP_NUM_THREADS": "3"}}, "3"),
    ],
)
def test_several_workers_get_one_thread_each_by_default(
    env: dict[str, str], fields: dict[str, Any], threads: str | None
) -> None:
    """As with torchrun, OMP_NUM_THREADS is 1 if several workers share the CPUs and it is not set."""
    assert planned(env, **fields).workers.base_env.get("OMP_NUM_THREADS") == threads


def test_env_adds_to_the_agents_environment() -> None:
    """A variable that is in both has the value of `env`."""
    spec = planned({"A": "1", "B": "1"}, env={"B": "2", "C": "3"}).workers
    assert spec.base_env == {"A": "1", "B": "2", "C": "3"}


@pytest.mark.parametrize(
    ("value", "nproc", "chosen"),
    [
        ("3", 2, {0: 3, 1: 3}),
        (1, 1, {0: 1}),
        ("0:1,1:2", 2, {0: 1, 1: 2}),
        ("11:3", 12, {11: 3}),
        ({0: 2}, 2, {0: 2}),
        ("0:1,0:1", 1, {0: 1}),
    ],
)
def test_streams_are_chosen_in_torchs_grammar(value: Any, nproc: int, chosen: dict[int, int]) -> None:
    """Redirects and tee are a number for all ranks or a mapping for some."""
    logs = planned(nproc_per_node=nproc, redirects=value, tee=value).workers.logs
    assert (logs.redirects, logs.tee) == (chosen, chosen)


@pytest.mark.parametrize("value", ["0", "1", "2", "3", "0:3", "0:3,1:0,2:1,3:2"])
def test_streams_mean_what_they_mean_to_torch(value: str) -> None:
    """torch's own reader gives the same."""
    from torch.distributed.elastic.multiprocessing.api import Std, to_map

    theirs = {rank: int(bits) for rank, bits in to_map(Std.from_str(value), 4).items()}
    ours = values.streams("tee", value, 4)
    assert {rank: ours.get(rank, 0) for rank in range(4)} == theirs


def test_streams_hold_for_workers_that_come_later() -> None:
    """If devices are counted before each round, a number for all ranks holds for every rank that may appear."""
    logs = planned(nproc_per_node="cpu", tee="3").workers.logs
    assert logs.tee[values.MAX_NPROC - 1] == 3


def test_log_dir_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a worker that changes its directory has the same files. /dev/null means none, empty the default."""
    monkeypatch.chdir(tmp_path)
    assert planned(log_dir="logs").workers.logs.base_dir == str(tmp_path / "logs")
    assert planned(log_dir="/dev/null").workers.logs.base_dir == "/dev/null"
    assert planned(log_dir="").workers.logs.base_dir is None


def test_a_filter_that_shows_nothing_is_said() -> None:
    """All output would be missing without a word. Where the number of workers may change, such a rank may come."""
    said = "--local-ranks-filter names 2, 3, but local ranks 0 to 1 are here: no output is shown"
    assert said in planned(nproc_per_node=2, local_ranks_filter="3,2").warnings
    for fields in ({"local_ranks_filter": "1,7"}, {"local_ranks_filter": ""}, {"local_ranks_filter": (0,)}):
        assert not any("local-ranks" in line for line in planned(nproc_per_node=2, **fields).warnings)
    assert not any("local-ranks" in line for line in planned(nproc_per_node="cpu", local_ranks_filter="999").warnings)


def test_files_that_are_asked_for_where_there_are_none_are_said() -> None:
    """What was to be in a file only is on the console then."""
    said = "--redirects and --tee have no effect with --log-dir /dev/null: output goes to the console as it is"
    for fields in ({"redirects": "1:3"}, {"tee": 1}):
        assert said in planned(nproc_per_node=2, log_dir="/dev/null", **fields).warnings
        assert said not in planned(nproc_per_node=2, **fields).warnings
    assert said not in planned(nproc_per_node=2, log_dir="/dev/null").warnings


def test_filters_and_signals_are_read() -> None:
    """Text is split as on the command line; the items of lists are not split."""
    spec = planned(
        local_ranks_filter="0,2",
        duplicate_stdout_filters="apple,or,,ange,",
        duplicate_stderr_filters=["pear"],
        signals_to_handle="SIGTERM, SIGUSR1,SIGTERM",
        log_line_prefix_template="<${rank}>",
    ).workers
    assert spec.logs.local_ranks_filter == {0, 2}
    assert (spec.logs.stdout_filters, spec.logs.stderr_filters) == (("apple", "or,ange"), ("pear",))
    assert spec.signals == (15, 10)
    assert planned(forward_signals="").workers.forward_signals == ()
    assert planned(forward_signals=[10, 12]).workers.forward_signals == (10, 12)
    assert planned(forward_signals="USR1,SIGUSR2, usr1,28").workers.forward_signals == (10, 12, 28)
    assert spec.logs.prefix_template == "<${rank}>"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_nodes": 0}, "min_nodes is 0, outside 1 to"),
        ({"min_nodes": 3, "max_nodes": 2}, "max_nodes is 2, less than min_nodes (3)"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"max_restarts": 1.5}, "max_restarts is 1.5"),
        ({"restart_window": -1}, "restart_window is -1"),
        ({"restart_backoff": "5:1"}, "restart_backoff is '5:1', whose MIN is more than its MAX"),
        ({"restart_backoff": "1:2:3"}, "give MIN or MIN:MAX seconds"),
        ({"restart_backoff": ":5"}, "restart_backoff is ':5'; give MIN or MIN:MAX seconds"),
        ({"leftovers": "stop:"}, "leftovers is 'stop:'; give stop, stop:SECONDS"),
        ({"exit_duration_in_mins": -5}, "exit_duration_in_mins is -5, outside 0 to 16666667 minutes"),
        ({"restart_backoff": "soon"}, "restart_backoff is 'soon', which is not a number"),
        ({"restart_backoff": (1, -2)}, "restart_backoff is -2"),
        ({"no_restart_codes": "93,x"}, "no_restart_codes is 'x', which is not a whole number"),
        ({"no_restart_codes": (0,)}, "no_restart_codes is 0, outside 1 to 255"),
        ({"no_restart_codes": "256"}, "no_restart_codes is '256', outside 1 to 255"),
        ({"startup_window": "x"}, "startup_window is 'x'"),
        ({"monitor_interval": math.nan}, "monitor_interval is nan"),
        ({"start_method": "fork"}, "start_method is 'fork'"),
        ({"run_id": "x" * 201}, "run id has 201 characters; the limit is 200"),
        ({"role": "x" * 201}, "role has 201 characters"),
        ({"local_addr": "a b"}, "local_addr is 'a b'"),
        ({"local_addr": ""}, "local_addr is ''"),
        ({"redirects": "4"}, "redirects is '4'"),
        ({"tee": "0:3,"}, "tee is '0:3,'"),
        ({"tee": {0: 9}}, "local rank 0 the value 9"),
        ({"tee": "0:1,0:2"}, "two values for local rank 0"),
        ({"log_rotate": "1k:x"}, "log_rotate is '1k:x'"),
        ({"local_ranks_filter": "0,a"}, "local_ranks_filter is '0,a'"),
        ({"local_ranks_filter": [-1]}, "local_ranks_filter is [-1]"),
        (
            {"signals_to_handle": "SIGTRM"},
            "'SIGTRM', which is no signal of this system; give, for example, SIGTERM,SIGINT; did",
        ),
        ({"signals_to_handle": "sigusr3"}, "did you mean 'SIGUSR"),
        ({"forward_signals": "USR1,TERM"}, "'TERM', which stops the job"),
        ({"forward_signals": "10", "signals_to_handle": "USR1"}, "'10', which stops the job"),
        ({"forward_signals": "KILL"}, "'KILL', which the agent cannot pass on"),
        ({"forward_signals": "SEGV"}, "'SEGV', which the agent cannot pass on"),
        ({"forward_signals": "USR3"}, "'USR3', which is no signal of this system; give, for example, USR1,USR2; did"),
        ({"forward_signals": "USR1,"}, "has ''"),
        ({"kill_signal": "USR1,USR2"}, "give one signal, such as USR2"),
        ({"save_signal": "TERM"}, "save_signal is signal 15, which signals_to_handle or forward_signals has too"),
        ({"save_signal": "USR1", "forward_signals": "USR1"}, "which signals_to_handle or forward_signals has too"),
        ({"save_signal": "USR1", "kill_signal": 10}, "save_signal is signal 10, which kill_signal has too"),
        ({"kill_switch": "/"}, "which is no path of a file"),
        ({"kill_switch": "a", "save_switch": "./a"}, "kill_switch and save_switch are both"),
        ({"orphan_grace": -1}, "orphan_grace is -1"),
        ({"leftovers": "leave"}, "leftovers is 'leave'; give stop, stop:SECONDS, wait or keep"),
        ({"leftovers": "keep:5"}, "leftovers is 'keep:5'"),
        ({"leftovers": "stop:soon"}, "leftovers is 'soon'"),
        ({"signals_to_handle": "SIGKILL"}, "no program can handle"),
        ({"signals_to_handle": ()}, "is empty"),
        ({"signals_to_handle": (12345,)}, "has 12345"),
        ({"log_dir": __file__}, "is no directory"),
        ({"env": {"A=B": "1"}}, "no environment variable"),
        ({"env": {"A": "\0"}}, "no environment variable"),
        ({"nproc_per_node": 0}, "--nproc-per-node is '0', outside 1 to 4096"),
        ({"nproc_per_node": 10**6}, "outside 1 to 4096"),
        ({"nproc_per_node": "gpus"}, "did you mean 'gpu'?"),
        ({"nproc_per_node": "1.5"}, "--nproc-per-node is '1.5'"),
        (
            {"virtual_local_rank": True, "nproc_per_node": 3, "env": {"CUDA_VISIBLE_DEVICES": "0,1"}},
            "each of 3 workers",
        ),
    ],
)
def test_wrong_values_are_refused(fields: dict[str, Any], message: str) -> None:
    """Each brings one line with the value and its limit."""
    assert message in refusal(**fields)


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        (0, (0.0, 60.0)),
        (5, (5.0, 60.0)),
        ("5", (5.0, 60.0)),
        (90.0, (90.0, 90.0)),
        ("1:7", (1.0, 7.0)),
        ((1, 7), (1.0, 7.0)),
    ],
)
def test_pauses_are_given_as_one_number_or_two(backoff: Any, pauses: tuple[float, float]) -> None:
    """The longest is by default 60 s, or the shortest if that is more."""
    restarts = planned(restart_backoff=backoff).workers.restarts
    assert (restarts.pause_min_s, restarts.pause_max_s) == pauses


def test_exit_codes_that_forbid_a_restart_are_text_or_numbers() -> None:
    """There may be none of them."""
    for given, codes in (("", set()), ("none", set()), ("7, 9", {7, 9}), ([93], {93}), ((), set())):
        assert planned(no_restart_codes=given).workers.restarts.no_restart_codes == codes


def test_validate_raises_the_errors_of_plan() -> None:
    """`LaunchConfig.validate` checks and returns nothing."""
    LaunchConfig().validate({})
    with pytest.raises(UsageError, match="max_restarts"):
        LaunchConfig(max_restarts=-1).validate({})


@pytest.mark.parametrize(
    ("text", "limit", "keep"),
    [("1024", 1024, None), ("1k", 1024, None), ("5M:3", 5 << 20, 3), ("2GiB:0", 2 << 30, 0), ("1MB", 1 << 20, None)],
)
def test_sizes_of_log_files_are_read(text: str, limit: int, keep: int | None) -> None:
    """A size in bytes or with a unit, and how many full files are kept."""
    assert values.rotation("log_rotate", text) == Rotation(limit, keep)
