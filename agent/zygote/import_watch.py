"""Watches imports: which module reads which variable, and what else it does that workers could not share.

What Python offers for each is used where there is something (`os._Environ`, `atexit.register`); the bounds of each
import are those of `importlib._bootstrap._load_unlocked`, in CPython 3.10 to 3.14. All is undone afterwards.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _weakref
import atexit
import gc
import os
import sys

from .environment_watch import EnvironmentWatch
from .import_tree import is_standard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from .fork_safety import Births
    from .import_tree import Import, Tree

WITH_GENERATORS = ("random", "numpy.random", "torch")
"""Modules with generators of random numbers, which `reseed` in `child.py` seeds anew in each worker."""
WITH_LOCKS = "multiprocessing.synchronize"
"""The module with the locks that processes share."""


class ImportWatch:
    """While entered, imports are added to `tree`, with what they did. Can be entered again."""

    def __init__(self, tree: Tree, births: Births, environment: EnvironmentWatch) -> None:
        self.tree = tree
        self.births = births
        self.environment = environment
        self.generators: list[Any] = []
        """Instances of random.Random that imports made without a seed."""
        self.drawn: set[int] = set()
        """Entropy that imports drew for generators of numpy."""
        self._locks: list[tuple[Import, Callable[[], object]]] = []
        """Who has made a lock that processes share, and a weak reference to it."""
        self._states: list[dict[str, object]] = []
        """What `process_state` was when each import that is under way began, innermost last."""
        self._undo: list[tuple[object, str, object]] = []
        self._audited: list[Tree] = []
        self._hooked = False
        self._torch_seed: int | None = None
        self._finalizer = -1
        """The index of the last one that was seen; weakref.finalize counts them."""

    def __enter__(self) -> None:
        self._replace(sys.modules["_frozen_importlib"], "_load_unlocked", self._watch_import)
        self._replace(os._Environ, "__getitem__", self.environment.get_item)
        self._replace(os._Environ, "__iter__", self.environment.iterate)
        self._replace(atexit, "register", self._watch_exit)
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(files_hook(self._audited))
        self._audited.append(self.tree)
        for name in WITH_GENERATORS:
            if name in sys.modules:
                self._watch_generators(name)
        if WITH_LOCKS in sys.modules:
            self._watch_locks()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._audited.pop()
        self.environment.settle(self.tree.root)
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)

    def _replace(self, owner: object, name: str, wrap: Callable[[Any], Callable[..., Any]]) -> None:
        if (original := getattr(owner, name, None)) is not None:
            self._undo.append((owner, name, original))
            setattr(owner, name, wrap(original))

    # -- what is watched ---------------------------------------------------------------------------------------------
    def _watch_import(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(spec: Any) -> Any:  # noqa: ANN401 - a ModuleSpec, and a module
            self.births.look()
            began = self.tree.begin(spec.name)
            self._states.append(process_state())
            failed = True
            try:
                module = original(spec)
                failed = False
            finally:
                self.births.look()
                self._check_torch_seed()
                self._check_exits()
                self._check_process(self._states.pop())
                self.environment.settle(began)
                self.tree.end(began, failed=failed)
            if spec.name in WITH_GENERATORS:
                self._watch_generators(spec.name)
            elif spec.name == WITH_LOCKS:
                self._watch_locks()
            return module

        # Warnings and tracebacks leave out the frames of Python's own import, by the name of their file.
        load.__code__ = load.__code__.replace(co_filename=original.__code__.co_filename)
        return load

    def _watch_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register(func: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as atexit.register
            name = getattr(func, "__qualname__", type(func).__qualname__)
            if args or kwargs or holds_objects(func):
                self._fault(f"registers {name} to run at exit when it is imported, with what it made for itself")
            else:
                self.tree.now.at_exit.append(name)
            return original(func, *args, **kwargs)

        return register

    def _watch_generators(self, name: str) -> None:
        """After the import of this module, which has generators of random numbers: watch those."""
        module = sys.modules[name]
        if name == "torch":
            self._torch_seed = module.default_generator.initial_seed()
            return
        for each in ("seed", "setstate", "set_state"):
            self._replace(module, each, lambda original: self._watch_seeding(name, original))
        if name == "random":
            self._replace(module.Random, "seed", self._watch_new_generator)
        elif bits := sys.modules.get("numpy.random.bit_generator"):
            self._replace(bits, "randbits", self._watch_entropy)

    def _watch_seeding(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def seed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the original
            self._fault(f"seeds {name} when it is imported")
            return original(*args, **kwargs)

        return seed

    def _watch_new_generator(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def seed(generator: Any, a: Any = None, version: int = 2) -> Any:  # noqa: ANN401 - as random.Random.seed
            if a is None:
                self.generators.append(generator)
            return original(generator, a, version)

        return seed

    def _watch_entropy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def randbits(count: int) -> Any:  # noqa: ANN401 - an int
            self.drawn.add(drawn := original(count))
            return drawn

        return randbits

    def _watch_locks(self) -> None:
        def watch(original: Callable[..., Any]) -> Callable[..., Any]:
            def init(lock: object, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as SemLock's
                self._locks.append((self.tree.now, _weakref.ref(lock)))
                original(lock, *args, **kwargs)

            return init

        self._replace(sys.modules[WITH_LOCKS].SemLock, "__init__", watch)

    def _check_process(self, before: dict[str, object]) -> None:
        """Find what an import has done to this process that a forked worker does not have, or has with the others.
        `before`: the state when it began."""
        now = process_state()
        for what, value in now.items():
            if value != before[what]:
                self._fault(f"changes {what} when it is imported, which a forked worker would not keep")
                for around in self._states:
                    around[what] = value
        if any(by is self.tree.now and ref() is not None for by, ref in self._locks):
            self._fault("makes a lock of multiprocessing when it is imported, which workers would share")

    def _check_torch_seed(self) -> None:
        if self._torch_seed is None:
            return
        seed = sys.modules["torch"].default_generator.initial_seed()
        if seed != self._torch_seed:
            self._torch_seed = seed
            self._fault("seeds torch when it is imported")

    def _check_exits(self) -> None:
        """Find what a module left to do at exit, also by `weakref.finalize`, as the library's temporary folders do:
        if it is about files that the module made, the first worker that exits would take them from the others."""
        now = self.tree.now
        finalize = getattr(sys.modules.get("weakref"), "finalize", None)
        for info in list(getattr(finalize, "_registry", {}).values()):
            if info.index > self._finalizer and info.atexit:
                self._finalizer = info.index
                if now.made_files:
                    self._fault(f"registers {info.func.__qualname__} to run at exit when it is imported")
        if now.made_files and now.at_exit and not now.faults and not is_standard(now.name):
            self._fault(f"makes files and registers {now.at_exit[0]} to run at exit when it is imported")

    def generators_to_seed(self) -> list[Any]:
        """The generators that imports made without a seed: workers would draw alike from them."""
        found = list(self.generators)
        if self.drawn:
            numpy = sys.modules["numpy.random"]
            for each in gc.get_objects():
                if type(each) in (numpy.Generator, numpy.RandomState):
                    source = each._bit_generator
                    sequence = getattr(source, "seed_seq", None) or getattr(source, "_seed_seq", None)
                    if getattr(sequence, "entropy", None) in self.drawn:
                        found.append(source)
        return found

    def _fault(self, what: str) -> None:
        now = self.tree.now
        now.faults.append(f"{now.name or 'sitecustomize'} {what}")


def process_state() -> dict[str, object]:
    """What a fork loses, or `become_worker` sets to what the agent ordered."""
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = ""  # it was removed
    return {
        "the working directory": cwd,
        "sys.argv": list(sys.argv),
        "the blocked signals": _signal.pthread_sigmask(_signal.SIG_BLOCK, ()),
        "the timer of alarm()": _signal.getitimer(_signal.ITIMER_REAL)[0] > 0,
    }


def holds_objects(func: object) -> bool:
    """Whether it has more than its module's globals: an object of its own, or variables of the function around it."""
    owner = getattr(func, "__self__", None)
    of_object = hasattr(func, "__func__") and not isinstance(owner, type)
    return of_object or bool(getattr(func, "__closure__", None)) or not hasattr(func, "__qualname__")


def files_hook(trees: list[Tree]) -> Callable[[str, tuple[Any, ...]], None]:
    """A function for `sys.addaudithook` that records which imports make files. It cannot be taken out again; without a
    tree it returns at once."""
    made = {"os.mkdir": 0, "os.mkfifo": 0, "os.symlink": 1, "os.link": 1}  # which argument is the path that is made

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if not trees or (event != "open" and event not in made):
            return
        if (event != "open" or args[2] & os.O_CREAT) and is_lasting(args[made.get(event, 0)]):
            trees[-1].now.made_files = True

    return hook


def is_lasting(path: object) -> bool:
    """Whether this is what a module makes for itself: no compiled module nor the folder of those, no device."""
    text = os.fsdecode(path) if isinstance(path, (str, bytes)) else ""
    return bool(text) and "__pycache__" not in text and not text.startswith("/dev/")
