"""The house rules, held by the machine: what may import what, how long things may be, and what nobody may call.

Each rule is a test, its reason is the test's docstring, and a finding says what to do instead.
"""

from __future__ import annotations

import ast
import configparser
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import elastic_agent
from support.source_tree import CORE, ROOT, calls, core, imports, parse, tracked

FLOORS = ("proto", "rendezvous", "agent", "control", "launcher", "trainer")
"""The folders from the ground up: each may import those below it."""
BESIDE_THE_FLOORS = {"worker": {"proto"}}
"""What a training script imports: it knows nothing of the agent."""
MAY_IMPORT = {
    **{folder: set(FLOORS[:floor]) for floor, folder in enumerate(FLOORS)},
    **BESIDE_THE_FLOORS,
}
MAY_IMPORT["launcher"] |= {"worker", "the package root"}
MAY_IMPORT["trainer"] |= {"worker", "the package root"}

PURE_FOLDERS = ("rendezvous/coordinator", "agent/lifecycle")
"""What decides. These folders, and whatever of ours they import in turn, may import each other and PURE_IMPORTS."""
PURE_IMPORTS = {"__future__", "collections.abc", "dataclasses", "enum", "typing"}

FOLDER_MODULES = 15
MODULE_LINES = 400
FUNCTION_LINES = 50
FUNCTION_LINES_HARD = 70
LONG_FUNCTIONS: dict[str, str] = {}
"""`path:function` -> why it may have up to FUNCTION_LINES_HARD lines. Only ever shrinks."""

PROCESS_OWNERS = {
    "agent/signals.py",
    "agent/nursery/cgroups.py",
    "agent/nursery/guardian.py",
    "agent/nursery/server.py",
    "agent/nursery/spawn.py",
    "agent/nursery/zygote_client.py",
    "agent/processes/nursery_process.py",
    "agent/processes/supervisor.py",
    "agent/zygote/fork_safety.py",
    "agent/zygote/server.py",
}
PICKLERS = {"launcher/in_worker/function_worker.py", "launcher/in_worker/functions.py"}

LOADED_BY_TORCH = {"launcher/torchrun/store.py"}
"""Subclasses of torch's, for a process that runs torch; nothing of the agent's own imports them."""


def none_of(findings: list[str], instead: str) -> None:
    assert not findings, "\n".join(["", *findings, f"instead: {instead}"])


def test_the_oldest_python_reads_everything() -> None:
    """Syntax that a newer Python has is an error on the older ones that setup.cfg promises."""
    none_of([module.unreadable for module in core() if module.unreadable], "write it as Python 3.10 has it")


def test_folders_import_one_way() -> None:
    """What a folder may know of is its design: the machines must not reach for the launcher, nor users for insides."""
    findings = []
    for module in core():
        allowed = MAY_IMPORT[module.folder] | {module.folder}
        for node, name in imports(module):
            ours = name.split(".")
            if ours[0] != "elastic_agent":
                continue
            where = ours[1] if len(ours) > 1 and ours[1] in CORE else "the package root"
            if where not in allowed:
                findings.append(f"{module.at(node)}: {module.folder} imports {where}")
    none_of(findings, "hand the value over as an argument, or move the code to the folder that may know both")


def test_ours_is_imported_relatively() -> None:
    """The checkout may be called anything and be imported through any path, so only relative names surely meet."""
    findings = [
        f"{module.at(node)}: {ast.unparse(node)}"
        for module in core()
        for node, name in imports(module)
        if name.split(".")[0] in {"elastic_agent", *CORE} and not (isinstance(node, ast.ImportFrom) and node.level)
    ]
    none_of(findings, "from ..rendezvous.records import Round")


def test_what_decides_imports_nothing_that_acts() -> None:
    """The machines also run in the simulator under a fake clock: one look at the real world and no seed replays."""
    modules = {module.name: module for module in core()}
    waiting = [name for name, module in modules.items() if module.path.startswith(PURE_FOLDERS)]
    seen, findings = set(waiting), []
    for module in map(modules.__getitem__, waiting):  # grows on the way
        for node, name in imports(module):
            home = name if name in modules or isinstance(node, ast.Import) else name.rpartition(".")[0]
            if home in modules and home not in seen:
                seen.add(home)
                waiting.append(home)
            if home not in modules and home not in PURE_IMPORTS:
                findings.append(f"{module.at(node)}: {name}")
    none_of(findings, "take it as an argument, or answer an effect that the loop performs")


def test_pure_folders_exist() -> None:
    """A renamed folder must not slip out from under the rule above."""
    none_of([path for path in PURE_FOLDERS if not (ROOT / path).is_dir()], "correct PURE_FOLDERS in this file")


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Modules in a circle can only be understood, tested and moved together."""
    modules = {module.name: module for module in core()}
    below = {
        name: {
            home
            for _, imported in imports(module)
            if (home := imported if imported in modules else imported.rpartition(".")[0]) in modules and home != name
        }
        for name, module in modules.items()
    }
    try:
        TopologicalSorter(below).prepare()
    except CycleError as circle:
        none_of([" -> ".join(circle.args[1])], "hand one of them what it needs as an argument of a type defined below")


def test_folders_are_small() -> None:
    """A list of modules that is read at a glance gets read."""
    sizes = Counter(module.path.rpartition("/")[0] for module in core() if not module.path.endswith("__init__.py"))
    findings = [f"{folder}: {size} modules, {FOLDER_MODULES} allowed" for folder, size in sizes.items()]
    none_of(
        [finding for finding, size in zip(findings, sizes.values(), strict=True) if size > FOLDER_MODULES], "a room"
    )


def test_folders_say_what_lives_there() -> None:
    """Who looks for something opens the folder's docstring first: what lives here, what it may import."""
    findings = [
        module.path
        for module in core()
        if module.path.endswith("__init__.py") and "mport" not in (ast.get_docstring(module.tree) or "")
    ]
    none_of(findings, "one paragraph: what lives here, and what it may import")


def test_modules_are_short() -> None:
    """A module that fits in a reader's head gets read."""
    findings = [
        f"{module.path}: {lines} lines, {MODULE_LINES} allowed"
        for module in core()
        if (lines := len(module.text.splitlines())) > MODULE_LINES
    ]
    none_of(findings, "move one of its concerns to a module of its own")


def test_functions_are_short() -> None:
    """A function that fits on a screen can be checked by eye."""
    findings = []
    for module in core():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                excused = f"{module.path}:{node.name}" in LONG_FUNCTIONS
                limit = FUNCTION_LINES_HARD if excused else FUNCTION_LINES
                if lines > limit:
                    findings.append(f"{module.at(node)}: {node.name} has {lines} lines, {limit} allowed")
    none_of(findings, "name a part of it and move that part out")


def test_long_functions_are_still_long() -> None:
    """The list of exceptions only ever shrinks: an entry that is no longer needed goes."""
    lengths = {
        f"{module.path}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in core()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    findings = [name for name in LONG_FUNCTIONS if lengths.get(name, 0) <= FUNCTION_LINES]
    none_of(findings, "delete the entry from LONG_FUNCTIONS")


def test_one_place_handles_processes() -> None:
    """Who starts, signals and reaps processes must be one hand, or pids are reused and children orphaned."""
    process_calls = re.compile(
        r"os\.(kill|killpg|fork|forkpty|posix_spawnp?|wait|waitid|waitpid|wait3|wait4|spawn\w*|system|popen)$"
        r"|signal\.(signal|pthread_kill|pidfd_send_signal|sigwait\w*|set_wakeup_fd)$"
        r"|subprocess\.[a-zP]|multiprocessing\.(Process|Pool|get_context)"
    )
    findings = [
        f"{module.at(node)}: {name}"
        for module in core()
        if module.path not in PROCESS_OWNERS
        for node, name in calls(module)
        if process_calls.match(name)
    ]
    none_of(findings, f"ask the supervisor; only {', '.join(sorted(PROCESS_OWNERS))} may")


def test_nothing_sleeps() -> None:
    """A sleep is either too short on a slow day or a delay on every other, and nothing can wake it."""
    findings = [
        f"{module.at(node)}: {name}" for module in core() for node, name in calls(module) if name.endswith("time.sleep")
    ]
    none_of(findings, "wait for the event itself: a selector, a Condition, an Event, or WakeAt in a machine")


def test_nothing_unpickles() -> None:
    """Unpickling runs what the sender likes. Only a function for this host's own workers travels so."""
    picklers = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
    findings = [
        f"{module.at(node)}: {name}"
        for module in core()
        if module.path not in PICKLERS
        for node, name in imports(module)
        if name.split(".")[0] in picklers
    ]
    none_of(findings, "protobuf on the wire (rendezvous/codec/records.py), json in files")


def test_no_shell() -> None:
    """A shell reads the user's file names as programs."""
    findings = [
        f"{module.at(node)}: {name}"
        for module in core()
        for node, name in calls(module)
        if name in {"os.system", "os.popen"}
        or any(key.arg == "shell" and ast.unparse(key.value) != "False" for key in node.keywords)
    ]
    none_of(findings, "an argument list")


def test_nothing_is_left_to_do() -> None:
    """A note to oneself in the code is a promise to nobody."""
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")  # not a finding here: this file is no part of the core
    findings = [
        f"{module.path}:{number}: {line.strip()}"
        for module in core()
        for number, line in enumerate(module.text.splitlines(), 1)
        if words.search(line)
    ]
    none_of(findings, "do it, or open an issue")


def test_no_exception_vanishes() -> None:
    """A bare except swallows even Ctrl-C, and an except with nothing in it hides a bug for years."""
    findings = []
    for module in core():
        lines = module.text.splitlines()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler):
                silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass | ast.Continue)
                last = node.end_lineno or node.lineno
                # The reason may follow on the handler's own lines, or stand alone right below or above them.
                near = [*lines[node.lineno - 1 : last], *(x for x in lines[last : last + 1] if x.lstrip()[:1] == "#")]
                near += [line for line in lines[node.lineno - 2 : node.lineno - 1] if line.lstrip()[:1] == "#"]
                if node.type is None or (silent and not any("#" in line for line in near)):
                    findings.append(f"{module.at(node)}: {lines[node.lineno - 1].strip()}")
    none_of(findings, "name the exception, and answer it; or say beside the pass why there is nothing to do")


def test_input_is_not_checked_by_assert() -> None:
    """`python -O` removes asserts, and a bare AssertionError tells a user nothing."""
    findings = [
        f"{module.at(node)}: {ast.unparse(node)}"
        for module in core()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assert)
    ]
    none_of(findings, "raise InternalError for our own mistakes, UsageError for the caller's")


def test_torch_is_imported_only_where_it_is_used() -> None:
    """Importing torch takes a second and 200 MB, which most agents never need."""
    heavy = {"torch", "numpy", "grpc"}
    findings = [
        f"{module.at(node)}: {name}"
        for module in (*core(), parse(ROOT / "__init__.py"), parse(ROOT / "__main__.py"))
        if module.path not in LOADED_BY_TORCH
        for node, name in imports(module, top_level_only=True)
        if name.split(".")[0] in heavy
    ]
    none_of(findings, "import it inside the function that needs it")


def test_annotations_are_lazy() -> None:
    """Annotations that are evaluated cost start-up time, and break on 3.10 where newer syntax is used."""
    findings = [
        module.path
        for module in core()
        if len(module.tree.body) > 1 and "from __future__ import annotations" not in module.text
    ]
    none_of(findings, "from __future__ import annotations")


def test_modules_and_public_names_say_what_they_are() -> None:
    """The docstring is where a reader, and `help()`, start."""
    findings = [
        f"{module.path}: module" for module in core() if module.tree.body and not ast.get_docstring(module.tree)
    ]
    findings += [
        f"{module.at(node)}: {node.name}"
        for module in core()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    none_of(findings, "one sentence: what it means, in which unit, what it raises")


def test_packages_listed_are_the_folders() -> None:
    """An editable install finds a folder that setup.cfg forgot; the wheel that users get does not."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    folders = {"elastic_agent"}
    for folder in CORE:
        for init in (ROOT / folder).rglob("__init__.py"):
            folders.add(".".join(["elastic_agent", *init.parent.relative_to(ROOT).parts]))
    assert listed == folders, f"correct packages in setup.cfg: {sorted(listed ^ folders)} differ"


def test_every_folder_with_python_is_known_here() -> None:
    """A new folder at the root must choose: part of the core and under its rules, or beside it."""
    beside = {"tests", "examples", "benchmarks", "docs"}
    found = {path.parts[0] for path in tracked() if path.suffix == ".py" and len(path.parts) > 1}
    none_of(sorted(found - beside - set(CORE)), "add it to CORE and MAY_IMPORT here, or to `beside`")


def test_root_holds_no_other_modules() -> None:
    """Any *.py at the root is installed into users' environments as a part of elastic_agent."""
    found = {path.name for path in ROOT.glob("*.py")}
    none_of(sorted(found - {"__init__.py", "__main__.py", "setup.py"}), "put it in a folder")


def test_public_names_are_all_there() -> None:
    """The public face is exactly what __init__.py lists, and each name leads somewhere."""
    homes = elastic_agent._HOMES
    assert sorted([*homes, "__version__"]) == sorted(elastic_agent.__all__) == sorted(dir(elastic_agent))
    missing = [name for name in elastic_agent.__all__ if getattr(elastic_agent, name, None) is None]
    assert not missing, f"listed in __init__.py and not found: {missing}"


def test_every_error_is_public() -> None:
    """A caller can only tell situations apart by errors that it can name."""
    from elastic_agent.agent import errors

    raised = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    none_of(sorted(raised - set(elastic_agent.__all__)), "list it in __init__.py")


def test_no_paths_of_one_machine() -> None:
    """A path of somebody's own machine works nowhere else and tells more than it should."""
    paths = re.compile(r"(?<![\w.$}/])/(?:work|root|home|Users|mnt|workspace)/(?!me\b|user\b)\w+")
    findings = []
    for path in tracked():
        if path.suffix in {".png", ".gif", ".svg", ".cast"} or path == Path(__file__).relative_to(ROOT):
            continue
        for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1):
            if paths.search(line):
                findings.append(f"{path}:{number}: {line.strip()[:100]}")
    none_of(findings, "a path relative to the repository, or /path/to/...")
