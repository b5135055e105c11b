"""The rules of the code, as tests: what may import what, how long things may be, and what may not be called.

Each rule is a test, its reason the docstring of the test, and each finding says what to do instead.
"""

from __future__ import annotations

import ast
import configparser
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import elastic_agent
from support.source_tree import BESIDE, CORE, ROOT, beside, calls, core, imports, parse, tracked

FLOORS = ("proto", "rendezvous", "agent", "control", "launcher", "trainer")
"""Folders in order: each may import those before it."""
BESIDE_THE_FLOORS = {"worker": {"proto"}}
"""What a training script imports: it must not load the agent."""
MAY_IMPORT = {
    **{folder: set(FLOORS[:floor]) for floor, folder in enumerate(FLOORS)},
    **BESIDE_THE_FLOORS,
}
MAY_IMPORT["launcher"] |= {"the package root"}
MAY_IMPORT["trainer"] |= {"worker", "the package root"}

PURE_FOLDERS = ("rendezvous/coordinator", "rendezvous/election", "agent/lifecycle", "control/decisions")
"""Folders of decisions. They, and all modules of ours that they import in turn, may import nothing but PURE_IMPORTS."""
PURE_IMPORTS = {"__future__", "bisect", "collections.abc", "dataclasses", "enum", "typing"}

FOLDER_MODULES = 15
MODULE_LINES = 400
FUNCTION_LINES = 50
FUNCTION_LINES_HARD = 70
LONG_FUNCTIONS: dict[str, str] = {}
"""`path:function` -> why it may have up to FUNCTION_LINES_HARD lines. Entries are removed, never added."""

PROCESS_OWNERS = {
    "agent/signals.py",
    "agent/nursery/cgroups.py",
    "agent/nursery/descendants.py",
    "agent/nursery/guardian.py",
    "agent/nursery/server.py",
    "agent/nursery/spawn.py",
    "agent/nursery/store_process.py",
    "agent/nursery/zygote_client.py",
    "agent/processes/marked.py",
    "agent/processes/nursery_process.py",
    "agent/processes/supervisor.py",
    "agent/zygote/fork_safety.py",
    "agent/zygote/server.py",
    "agent/zygote/successor.py",
    "control/commands.py",
    "worker/loop/forwarded_signals.py",
}
PICKLERS = {
    "launcher/in_worker/function_worker.py",
    "launcher/in_worker/functions.py",
    "trainer/pickled_values.py",
    "worker/data/packing.py",
}

LOADED_BY_TORCH = {"launcher/torchrun/store.py"}
"""Subclasses of classes of torch, for processes that have imported torch; no module of the agent imports them."""
LOADED_ON_DEMAND = {"control/remote/server.py", "control/ctl/remote.py"}
"""With --control-address, and by elasticctl for an agent on another host; tests hold that nothing else loads them."""


def none_of(findings: list[str], instead: str) -> None:
    assert not findings, "\n".join(["", *findings, f"instead: {instead}"])


def test_the_oldest_python_can_parse_every_module() -> None:
    """Newer syntax is an error on the oldest Python that setup.cfg allows."""
    none_of([module.unreadable for module in core() if module.unreadable], "use syntax that Python 3.10 has")


def test_folders_import_one_way() -> None:
    """Each folder imports only those below it, so that it can be understood and tested without those above."""
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
    none_of(findings, "pass the value as an argument, or move the code to a folder that may import both")


def test_modules_of_ours_are_imported_relatively() -> None:
    """The checkout may have any name and be imported through any path, so only relative names always work."""
    findings = [
        f"{module.at(node)}: {ast.unparse(node)}"
        for module in core()
        for node, name in imports(module)
        if name.split(".")[0] in {"elastic_agent", *CORE} and not (isinstance(node, ast.ImportFrom) and node.level)
    ]
    none_of(findings, "from ..rendezvous.records import Round")


def test_pure_folders_import_nothing_that_acts() -> None:
    """The machines also run in the simulator, on its clock. If they read the real one, no seed could be replayed."""
    modules = {module.name: module for module in core()}
    waiting = [name for name, module in modules.items() if module.path.startswith(PURE_FOLDERS)]
    seen, findings = set(waiting), []
    for module in map(modules.__getitem__, waiting):  # grows in the loop
        for node, name in imports(module):
            home = name if name in modules or isinstance(node, ast.Import) else name.rpartition(".")[0]
            if home in modules and home not in seen:
                seen.add(home)
                waiting.append(home)
            if home not in modules and home not in PURE_IMPORTS:
                findings.append(f"{module.at(node)}: {name}")
    none_of(findings, "take the value as an argument, or return an effect that the loop carries out")


def test_pure_folders_exist() -> None:
    """A renamed folder must not escape the rule above."""
    none_of([path for path in PURE_FOLDERS if not (ROOT / path).is_dir()], "correct PURE_FOLDERS in this file")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Modules of a circle can only be understood, tested and moved together."""
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
        none_of(
            [" -> ".join(circle.args[1])],
            "pass one of them what it needs as an argument, of a type that is defined in a module below",
        )


def test_folders_are_small() -> None:
    """A short list of modules can be read at a glance, in the tests too."""
    generated = re.compile(r"(__init__|_pb2)\.py$")
    modules = [path for path in tracked() if path.suffix == ".py" and not generated.search(path.name)]
    sizes = Counter(path.parent.as_posix() for path in modules)
    findings = [f"{folder}: {size} modules, {FOLDER_MODULES} allowed" for folder, size in sizes.items()]
    none_of(
        [finding for finding, size in zip(findings, sizes.values(), strict=True) if size > FOLDER_MODULES],
        "move modules of one concern to a folder of their own",
    )


def test_folders_have_a_docstring() -> None:
    """The docstring of `__init__.py` says what is in the folder and what it may import."""
    findings = [
        module.path
        for module in core()
        if module.path.endswith("__init__.py") and "mport" not in (ast.get_docstring(module.tree) or "")
    ]
    none_of(findings, "one paragraph: what is in the folder, and what it may import")


def test_modules_are_short() -> None:
    """A short module can be read as a whole, a test as well."""
    findings = [
        f"{module.path}: {lines} lines, {MODULE_LINES} allowed"
        for module in (*core(), *beside())
        if (lines := len(module.text.splitlines())) > MODULE_LINES
    ]
    none_of(findings, "move one of its concerns to a module of its own")


def test_functions_are_short() -> None:
    """A function that fits on a screen can be checked at a glance."""
    findings = []
    for module in (*core(), *beside()):
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                excused = f"{module.path}:{node.name}" in LONG_FUNCTIONS
                limit = FUNCTION_LINES_HARD if excused else FUNCTION_LINES
                if lines > limit:
                    findings.append(f"{module.at(node)}: {node.name} has {lines} lines, {limit} allowed")
    none_of(findings, "move a part of it to a function of its own")


def test_long_functions_are_still_long() -> None:
    """Exceptions that are no longer needed are removed."""
    lengths = {
        f"{module.path}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in (*core(), *beside())
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    findings = [name for name in LONG_FUNCTIONS if lengths.get(name, 0) <= FUNCTION_LINES]
    none_of(findings, "delete the entry from LONG_FUNCTIONS")


def test_only_listed_modules_handle_processes() -> None:
    """If several places start, signal and reap processes, a reused pid is signalled or a child is not reaped."""
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
    none_of(findings, f"use the supervisor; only {', '.join(sorted(PROCESS_OWNERS))} may do this")


def test_nothing_sleeps() -> None:
    """A sleep is too short on a slow host and a delay on any other, and it cannot be interrupted."""
    findings = [
        f"{module.at(node)}: {name}" for module in core() for node, name in calls(module) if name.endswith("time.sleep")
    ]
    none_of(findings, "wait for the event itself: a selector, a Condition, an Event, or WakeAt in a machine")


def test_nothing_unpickles() -> None:
    """Unpickling runs code of the sender. Only functions for workers of the same host are sent so."""
    picklers = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
    findings = [
        f"{module.at(node)}: {name}"
        for module in core()
        if module.path not in PICKLERS
        for node, name in imports(module)
        if name.split(".")[0] in picklers
    ]
    none_of(findings, "protobuf on the wire (rendezvous/codec/records.py), json in files")


def test_nothing_unpickles_what_the_network_brought() -> None:
    """Collectives of objects and torch.load run what is in them as code."""
    findings = [
        f"{module.at(node)}: {name}"
        for module in core()
        for node, name in calls(module)
        if re.search(r"_object(_list)?$|^torch\.load$", name)
        and not any(key.arg == "weights_only" and ast.unparse(key.value) == "True" for key in node.keywords)
    ]
    none_of(findings, "World.gather and World.broadcast_bytes, and torch.load(..., weights_only=True)")


def test_no_shell() -> None:
    """A shell interprets characters in the user's file names."""
    findings = [
        f"{module.at(node)}: {name}"
        for module in core()
        for node, name in calls(module)
        if name in {"os.system", "os.popen"}
        or any(key.arg == "shell" and ast.unparse(key.value) != "False" for key in node.keywords)
    ]
    none_of(findings, "an argument list")


def test_no_marks_of_unfinished_work() -> None:
    """A TODO in the code is forgotten; an issue is not."""
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")  # no finding itself: this file is not in the core
    findings = [
        f"{module.path}:{number}: {line.strip()}"
        for module in core()
        for number, line in enumerate(module.text.splitlines(), 1)
        if words.search(line)
    ]
    none_of(findings, "do it, or open an issue")


def test_no_exception_is_ignored_without_a_reason() -> None:
    """A bare except catches Ctrl-C too, and an empty handler hides bugs."""
    findings = []
    for module in core():
        lines = module.text.splitlines()
        for node in module.nodes:
            if isinstance(node, ast.ExceptHandler):
                silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass | ast.Continue)
                last = node.end_lineno or node.lineno
                # The reason may follow on the handler's own lines, or stand alone right below or above them.
                near = [*lines[node.lineno - 1 : last], *(x for x in lines[last : last + 1] if x.lstrip()[:1] == "#")]
                near += [line for line in lines[node.lineno - 2 : node.lineno - 1] if line.lstrip()[:1] == "#"]
                if node.type is None or (silent and not any("#" in line for line in near)):
                    findings.append(f"{module.at(node)}: {lines[node.lineno - 1].strip()}")
    none_of(findings, "name the exception and handle it, or say in a comment at the pass why nothing has to be done")


def test_input_is_not_checked_by_assert() -> None:
    """`python -O` removes asserts, and a bare AssertionError does not say what is wrong."""
    findings = [
        f"{module.at(node)}: {ast.unparse(node)}"
        for module in core()
        for node in module.nodes
        if isinstance(node, ast.Assert)
    ]
    none_of(findings, "raise InternalError for our own mistakes, UsageError for the caller's")


def test_torch_is_imported_only_where_it_is_used() -> None:
    """Importing torch takes a second and 200 MB, which most agents never need. `worker` is for scripts that have it."""
    heavy = {"torch", "numpy", "grpc"}
    findings = [
        f"{module.at(node)}: {name}"
        for module in (*core(), *(parse(ROOT / name) for name in ("__init__.py", "__main__.py", "torchrun.py")))
        if module.path not in LOADED_BY_TORCH | LOADED_ON_DEMAND
        and not module.path.startswith(("worker/", "trainer/in_worker/"))
        for node, name in imports(module, top_level_only=True)
        if name.split(".")[0] in heavy
    ]
    none_of(findings, "import it inside the function that needs it")


def test_annotations_are_lazy() -> None:
    """Evaluated annotations cost time at start-up, and fail on 3.10 where they use newer syntax."""
    findings = [
        module.path
        for module in core()
        if len(module.tree.body) > 1 and "from __future__ import annotations" not in module.text
    ]
    none_of(findings, "from __future__ import annotations")


def test_modules_and_public_classes_have_docstrings() -> None:
    """Readers and `help()` start at the docstring."""
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
    """A folder missing in setup.cfg is found by an editable install, but is not in the wheel."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    folders = {"elastic_agent"}
    for folder in CORE:
        for init in (ROOT / folder).rglob("__init__.py"):
            folders.add(".".join(["elastic_agent", *init.parent.relative_to(ROOT).parts]))
    assert listed == folders, f"correct packages in setup.cfg: {sorted(listed ^ folders)} differ"


def test_every_folder_with_python_is_listed() -> None:
    """A new folder at the root is either part of the core, under these rules, or listed as beside it."""
    found = {path.parts[0] for path in tracked() if path.suffix == ".py" and len(path.parts) > 1}
    none_of(sorted(found - {*BESIDE, "docs"} - set(CORE)), "add it to CORE and MAY_IMPORT here, or to BESIDE")


def test_root_holds_no_other_modules() -> None:
    """Every *.py at the root is installed as a module of elastic_agent; torchrun.py is meant to be one."""
    found = {path.name for path in ROOT.glob("*.py")}
    none_of(sorted(found - {"__init__.py", "__main__.py", "setup.py", "torchrun.py"}), "put it in a folder")


def test_public_names_exist() -> None:
    """The public names are those that __init__.py lists, and each can be imported."""
    homes = elastic_agent._HOMES
    assert sorted([*homes, "__version__"]) == sorted(elastic_agent.__all__) == sorted(dir(elastic_agent))
    missing = [name for name in elastic_agent.__all__ if getattr(elastic_agent, name, None) is None]
    assert not missing, f"listed in __init__.py but not found: {missing}"


def test_every_error_is_public() -> None:
    """A caller can only catch errors that it can import."""
    from elastic_agent.agent import errors

    raised = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    none_of(sorted(raised - set(elastic_agent.__all__)), "list it in __init__.py")


def test_no_paths_of_one_host() -> None:
    """A path of one developer's host does not exist elsewhere, and may disclose a name."""
    paths = re.compile(r"(?<![\w.$}/])/(?:work|root|home|Users|mnt|workspace)/(?!me\b|user\b)\w+")
    findings = []
    for path in tracked():
        if path.suffix in {".png", ".gif", ".svg", ".cast"} or path == Path(__file__).relative_to(ROOT):
            continue
        for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1):
            if paths.search(line):
                findings.append(f"{path}:{number}: {line.strip()[:100]}")
    none_of(findings, "a path relative to the repository, or /path/to/...")
