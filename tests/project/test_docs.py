"""The pages say what the code does: the contract, the flags, the statuses, the commands, the links."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import elastic_agent
from elastic_agent import AgentEvent, LaunchConfig, Member, NodeAgent, Status, WorkerFailure
from elastic_agent.agent import errors, exit_status
from elastic_agent.control.ctl.cli import elasticctl
from elastic_agent.control.watcher.advise import advise
from elastic_agent.control.watcher.cli import watch
from elastic_agent.launcher.config import etcd_conf
from elastic_agent.launcher.config.flag import Flag
from elastic_agent.launcher.config.flags import FLAGS
from elastic_agent.launcher.config.rdzv_conf import KEYS
from support.source_tree import ROOT, core, tracked

PAGES = sorted(path for path in tracked() if path.suffix == ".md")

PROMISED = """\
A worker fails and the budget is above 0: this agent charges itself one restart, a new round begins, the other agents'
workers are stopped and restarted, their budgets untouched.

Budgets are local and never synchronised.

A failure that only follows from another node's failure is not charged: the node of the cause pays. `--charge local`
counts as torchrun does.

Membership changes (a node arrives, leaves, is replaced) never charge anybody.

A failure of the host charges nobody, and the job goes on; a host that fails three times in a row is left with status
71.

The budget is spent: the agent finishes, the rendezvous closes, workers of all other agents are stopped, everybody exits
non-zero and says which node, rank and error was the cause.

With `max_restarts=0` a worker failure ends the job at once and leaves the restart to the scheduler.

A crash loop pauses: nothing before the first restart, then `--restart-backoff`; the others wait for the node, nodes
that come or go change nothing, and a request to leave ends the pause at once.

With `--restart-window` the budget counts only failures within that many seconds.

A worker that exits with 93 (`--no-restart-codes`) ends the job at once, whatever is left of the budget; every node
exits 93 and says why.

Workers are counted anew before every round, so a node that lost a device comes back with fewer.

A node arrives and there is room: all agents stop their workers and re-form with it.

A node arrives and the round has `max_nodes`: nothing is torn down; it waits as a spare, enters when a place frees, and
gives up after the join timeout (600 s default).

A node leaves, by SIGTERM (announces its departure) or silently (its lease runs out): survivors re-form if `min_nodes`
allow.

With fewer they gather until the join timeout, then exit with a message that names the missing nodes.

On etcd and c10d, workers of an older round are gone before any worker of a newer one starts, whichever nodes are cut
off, and whichever agents are frozen.

A worker exits with 75: no restart follows, nobody is charged, and every agent of the job ends with 75, told apart from
a job that is done and from one that failed.

A node that is only itself preempted leaves, and the others go on.

A node that lives but does nothing is lost as one that died is: its main thread stands still, or it receives nothing.

A coordinator that stands still coordinates no more.

An agent finishes (its workers all exit 0): the finalisation barrier runs (300 s, `--exit-barrier-timeout`); nodes that
finish inside it exit 0.

At its end nodes that still work are stopped, with a message that says so and a non-zero status; finished nodes keep 0.

A worker failing while another node has already finished is decided at once: restart what can restart within the budget
and the remaining nodes (`min_nodes` permitting), otherwise close and name the cause; no node waits out the 300 s.

Heterogeneous `nproc-per-node` across nodes works.

A fresh master port and key namespace every round.

It is there before the first worker needs it and until the last one has ended, whoever exits first.

It moves with group rank 0.

If its process dies, the round is restarted on all nodes, and nobody is charged.

A second, different job with the same id is refused in under 10 s, with both specs named and the first job untouched.

Different `--nnodes` on different nodes: refused, with both named.

An agent of another protocol version is refused, both versions named.

A run id that is used again after its job has ended, on a store that outlives jobs, starts a new incarnation.

The agent that hosts the store serves until the last node has ended, also when it finishes first or its own budget is
spent.

Losing the host by force is an orderly end: after `store_grace` every agent stops its workers and exits 80 naming the
host.

Where `--rdzv-endpoint` names one node, that node is started again and nobody can tell it of the job, it begins a new
one, and every agent of the old one that finds it kills its workers at once and exits 80.

Where the agent that hosts the store is killed, another node hosts it and the job goes on: one of those that
`--rdzv-endpoint` lists or, where it names one, any member.

Of two nodes with `--rdzv-conf survivor=go` the guest goes on once the host has been silent for a lease, though it may
live; each says at the start of a round what that risks.

Of three nodes and more that may host the store the others go on once the host of the store has been silent for a
lease, as after the loss of its power, if they are more than half of the voters of its round: within a lease and 3 s,
and no worker of the host runs beside theirs.

Where `--rdzv-endpoint` names one node and the job went on without it, that node, started again, is told of the job
before it begins one, and joins it.

Where another node may host the store and the one that does leaves, it hands the store over, and ends.

Where no node hosts the store, losing the coordinator costs no more than losing any node: another takes over, whatever
the phase, and goes on from what was announced.
"""
"""In the order of the page. Here too, so that no change of the page alone can weaken it."""
CONTRACT = [" ".join(sentence.split()) for sentence in PROMISED.split("\n\n")]


@cache
def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(name: str, heading: str) -> list[list[str]]:
    """Cells of every table on the page whose first column is headed so."""
    found: list[list[str]] = []
    inside = False
    for line in page(name).splitlines():
        cells = [cell.strip() for cell in line.strip()[1:-1].split("|")] if line.startswith("|") else []
        if cells and cells[0] == heading:
            inside = True
        elif not cells:
            inside = False
        elif inside and not line.startswith("|---"):
            found.append(cells)
    return found


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def promises() -> dict[str, list[str]]:
    """Each sentence in bold of the contract, with the tests listed between it and the next one."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^\*\*", page("docs/failover-contract.md"), flags=re.MULTILINE)[1:]:
        sentence, _, rest = part.partition("**")
        found[" ".join(sentence.split())] = re.findall(r"^- `(test_\w+)`$", rest, flags=re.MULTILINE)
    return found


def contract_tests() -> list[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests/contract").glob("test_*.py")]
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [function.name for function in functions if function.name.startswith("test_")]


def test_the_contract_on_the_page_is_the_one_that_was_promised() -> None:
    """No promise is missing on the page, none is weaker, and none is new without being written down here."""
    assert list(promises()) == CONTRACT


def test_every_promise_names_its_tests() -> None:
    """A promise without a test is a hope."""
    assert not [sentence for sentence, tests in promises().items() if not tests]


def test_every_test_of_the_contract_is_on_the_page_once() -> None:
    """The page names each test of tests/contract under one promise, and no test that is not there."""
    named = [test for tests in promises().values() for test in tests]
    assert sorted(named) == sorted(contract_tests())


def flag_rows() -> dict[str, list[str]]:
    return {quoted(cells[0])[0]: cells for cells in rows("docs/configuration.md", "flag")}


def test_every_flag_is_documented_and_no_other() -> None:
    """A flag that is not on the page cannot be found, and one that is gone cannot be typed."""
    assert sorted(flag_rows()) == sorted(f"--{flag.name}" for flag in FLAGS)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_each_flag_shows_its_short_form_variable_and_default(flag: Flag) -> None:
    """What stands beside a flag is what the table of flags says."""
    spellings, variable, default, meaning = flag_rows()[f"--{flag.name}"]
    assert quoted(spellings) == [f"--{flag.name}"] + ([f"-{flag.short}"] if flag.short else [])
    assert variable == (f"`{flag.variable}`" if flag.variable else "none")
    assert meaning
    if flag.read is None:
        assert default == ("off" if flag.env else "")
    elif quoted(default):
        assert flag.read("default", quoted(default)[0]) == flag.default


def test_every_rendezvous_key_is_documented_with_its_default() -> None:
    """Keys and defaults on the page are those that `rdzv_conf.KEYS` and `etcd_conf.KEYS` tell users of."""
    shown = {quoted(cells[0])[0]: cells[1] for cells in rows("docs/configuration.md", "key")}
    known = {**KEYS, **etcd_conf.KEYS}
    assert sorted(shown) == sorted(known)
    for key, told in known.items():
        default = re.search(r"\((\d+)\)$", told)
        if default:
            assert shown[key] == default[1], key


EXAMPLES = {
    *("--flag", "--name", "--redirect", "--lr", "--wandb-api-key"),
    *("--quick", "--pairs", "--calls", "--starts", "--kills", "--nodes", "--rounds", "--schedules", "--figures"),
    *("--one-endpoint", "--rest", "--seeds", "--tcp", "--runs", "--start", "--jobs", "--for", "--store"),
}
"""How a flag is written, how one is shortened, two of a script; and some of benchmarks, campaigns and the simulator."""
OF_ETCD = {
    *("--bcrypt-cost", "--client-cert-auth", "--quota-backend-bytes"),
    *("--auto-compaction-mode", "--auto-compaction-retention", "--rev"),
}
"""Flags of its servers that are talked about."""
OF_SLURM = {"--array", "--exclude", "--mail-type", "--name", "--no-kill", "--signal"}
"""Options of sbatch and srun, likewise."""
OF_RAY = {"--working-dir"}
"""And of `ray job submit`."""


def test_every_flag_and_variable_on_any_page_exists() -> None:
    """A flag with its two hyphens in backticks, and a PET_ variable, can be typed as shown."""
    programs = (watch, advise, elasticctl, *elasticctl.commands.values())
    of_programs = (name for command in programs for option in command.params for name in option.opts)
    known = {*(f"--{flag.name}" for flag in FLAGS), *EXAMPLES, *OF_ETCD, *OF_SLURM, *OF_RAY, *of_programs}
    variables = {flag.variable for flag in FLAGS}
    wrong = []
    for path in PAGES:
        text = page(path.as_posix())
        if path.parts[0] == "docs":
            for code in quoted(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
                shown = re.findall(r"(?<![\w-])--[a-z][\w-]+", code)
                wrong += [f"{path}: {flag}" for flag in shown if flag.replace("_", "-") not in known]
        wrong += [f"{path}: {name}" for name in re.findall(r"\bPET_[A-Z_]*[A-Z]\b", text) if name not in variables]
    assert not wrong


def test_every_status_is_documented_and_no_other() -> None:
    """The table of exit codes has a row for each status that the code can end with."""
    named = {value for name, value in vars(exit_status).items() if name.isupper() and isinstance(value, int)}
    raised = {error.exit_code for error in error_types() if error is not errors.StoppedBySignal}
    stated = [str(code) for code in sorted((named | raised) - {exit_status.SIGNALLED})]
    assert [cells[0] for cells in rows("docs/exit-codes.md", "status")] == [*stated, f"{exit_status.SIGNALLED}+n"]


def error_types() -> list[type[errors.AgentError]]:
    types = (value for value in vars(errors).values() if isinstance(value, type))
    return [value for value in types if issubclass(value, errors.AgentError)]


def test_every_error_is_documented_with_its_status() -> None:
    """Both pages that list errors name each of them, and the status beside it is the error's own."""
    named = {error.__name__ for error in error_types()} - {"AgentError"}
    assert {quoted(cells[0])[0] for cells in rows("docs/library.md", "error")} == named
    by_status = {name: cells[0] for cells in rows("docs/exit-codes.md", "status") for name in quoted(cells[1])}
    assert set(by_status) == named
    for name, status in by_status.items():
        assert status == "128+n" or int(status) == getattr(errors, name).exit_code


def test_every_field_of_the_configuration_is_documented() -> None:
    """The library's page lists the fields of LaunchConfig with their defaults."""
    shown: dict[str, object] = {}
    for names, defaults, *_ in rows("docs/library.md", "field"):
        values = ast.literal_eval(f"({defaults.replace('`', '')},)")
        shown.update(zip(quoted(names), values, strict=True))
    made = LaunchConfig()
    assert shown == {field.name: getattr(made, field.name) for field in fields(LaunchConfig)}


def test_every_public_name_is_in_the_librarys_page() -> None:
    """What can be imported from the package is explained, and so is what an event, a status and a failure hold."""
    words = set(re.findall(r"\w+", page("docs/library.md")))
    held = [field.name for kind in (AgentEvent, Status, WorkerFailure, Member) for field in fields(kind)]
    steering = [name for kind in NodeAgent.__mro__[:-1] for name in vars(kind) if not name.startswith("_")]
    missing = {*elastic_agent.__all__, *held, *steering} - words - {"__version__"}
    assert not missing


def test_every_command_of_make_on_the_pages_is_a_target() -> None:
    """`make something` in the documentation works."""
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), flags=re.MULTILINE))
    shown = {name for path in PAGES for name in re.findall(r"(?:`| {4})make ([a-z-]+)", page(path.as_posix()))}
    assert {"run", "test", "bench"} <= shown <= targets


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_links_lead_somewhere(path: Path) -> None:
    """Each relative link names a file of this repository, and its anchor a heading there."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page(path.as_posix())):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        file = ROOT / path if not name else ROOT / path.parent / name
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_files_that_the_pages_name_are_there() -> None:
    """A path in backticks with a folder of ours in front is a file or a folder of this repository."""
    folders = "agent|control|deploy|rendezvous|launcher|proto|worker|tests|docs|examples|benchmarks"
    gone = []
    for path in PAGES:
        named = [code for code in quoted(page(path.as_posix())) if re.fullmatch(rf"(?:{folders})/[\w./*-]+", code)]
        gone += [f"{path}: {code}" for code in named if not list(ROOT.glob(code.rstrip("/")))]
    assert not gone


def test_modules_that_the_pages_name_are_there() -> None:
    """A module named without its folder is one of ours; train.py stands for the script of a user."""
    ours = {path.name for path in tracked() if path.suffix == ".py"} | {"train.py"}
    named = [(path, code) for path in PAGES for code in quoted(page(path.as_posix())) if re.fullmatch(r"\w+\.py", code)]
    assert not [f"{path}: {code}" for path, code in named if code not in ours]


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_python_on_the_pages_compiles(path: Path) -> None:
    """An example that is not even Python teaches nobody."""
    for block in re.findall(r"^```python\n(.*?)^```", page(path.as_posix()), flags=re.MULTILINE | re.DOTALL):
        ast.parse(block)


def texts() -> str:
    """Every text that the program may print, each on its own; what is filled in later ends one."""
    found: list[str] = []
    for module in core():
        nodes = list(ast.walk(module.tree))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        constants = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
        found += [node.value for node in constants if isinstance(node.value, str)]
    return "\0".join(found)


def test_troubleshooting_quotes_what_the_program_prints() -> None:
    """Who searches the page for a line on the console finds it: each text of the first column is in the code."""
    printed = texts()
    shown = [text for cells in rows("docs/troubleshooting.md", "you see") for text in quoted(cells[0])]
    assert len(shown) > 40
    assert not [text for text in shown if text not in printed]


def test_every_status_is_in_troubleshooting() -> None:
    """Each status that is not 0 is a symptom that somebody looks up."""
    text = page("docs/troubleshooting.md")
    known = [cells[0] for cells in rows("docs/exit-codes.md", "status") if cells[0].isdigit() and cells[0] != "0"]
    assert not [status for status in known if f"exit {status}" not in text]


def test_every_decision_is_listed() -> None:
    """The list of decisions names each page of docs/adr, by its own title."""
    for path in PAGES:
        if path.parent.as_posix() == "docs/adr" and path.name != "README.md":
            number, title = re.match(r"# (\d{4}): (.+)", page(path.as_posix())).groups()  # type: ignore[union-attr]
            assert f"| [{number}]({path.name}) | {title} |" in page("docs/adr/README.md")


def test_no_page_has_a_path_of_one_machine() -> None:
    """Paths on the pages are relative, or those that every Linux has, or keys in etcd."""
    known = ("/other/job2/job", "/dev/null", "/dev/shm", "/dev/termination-log", "/tmp", "/proc", "/path/to")
    found = [
        f"{path}: {match}"
        for path in PAGES
        for match in re.findall(r"(?<![\w.:/)\]}<>\[-])/[a-z]\w*/[\w./-]+", page(path.as_posix()))
        if not match.startswith(known)
    ]
    assert not found
