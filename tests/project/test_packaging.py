"""The installed package: a wheel with nothing else in it, a command that starts, an import that loads nothing more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import elastic_agent
from support.network import free_port
from support.side_environments import side_python
from support.source_tree import CORE, ROOT, tracked

pytestmark = pytest.mark.slow

BUILD_S = 120
"""Limit for building or installing, which takes a few seconds on an idle host."""


SHIPPED = (*CORE, "deploy")
"""Folders of which users get something."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that the checkout stays clean, in a directory whose name is no identifier."""
    source = tmp_path_factory.mktemp("packaging") / "some-checkout 1"
    for path in tracked():
        if path.parts[0] in SHIPPED or len(path.parts) == 1:
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, source / path)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--use-pep517", "--wheel-dir", "dist", "."]
    run(build, cwd=source)
    [built] = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The `bin` of a new environment with the wheel; it takes dependencies from the one that runs the tests."""
    home = wheel.parent / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(home)])
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    run([*pip, "install", "--no-deps", "--no-index", str(wheel)])
    own = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # A .pth line adds a directory without reading the .pth files in it, so an editable install there has no effect.
    Path(own, "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def run(command: list[str], cwd: Path | None = None) -> str:
    """Run the command without our PYTHONPATH; returns what it printed, or fails with its whole output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, timeout=BUILD_S, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Users get no tests, no setup.py, and no top-level `agent` that would hide a module of theirs."""
    names = zipfile.ZipFile(wheel).namelist()
    ours = {str(path) for path in tracked() if path.parts[0] in SHIPPED or len(path.parts) == 1}
    wanted = {
        f"elastic_agent/{path}"
        for path in ours - {"setup.py"}
        if path.endswith((".py", ".pyi", ".proto", "bin/torchrun", "page/page.html"))
        or path == "py.typed"
        or path.startswith("deploy/")
    }
    assert {name for name in names if ".dist-info/" not in name} == wanted


def test_the_scripts_for_queues_are_installed_and_can_be_started(installed: Path) -> None:
    """`python -m elastic_agent` need not be a checkout: the scripts and their table are beside the package."""
    look = "import elastic_agent, os; print(os.path.dirname(elastic_agent.__file__))"
    deploy = Path(run([str(installed / "python"), "-c", look], cwd=installed.parent).strip(), "deploy")
    assert (deploy / "exit-statuses").is_file()
    started = subprocess.run([deploy / "slurm" / "chain.sh"], capture_output=True, text=True, check=False, timeout=20)
    assert (started.returncode, started.stderr[:6]) == (2, "usage:")


def test_the_source_archive_has_all_that_the_wheel_has(wheel: Path) -> None:
    """A wheel that is built from it is the same."""
    build = "import setuptools.build_meta as b; print(b.build_sdist('dist'))"
    run([sys.executable, "-c", build], cwd=wheel.parent.parent)
    [archive] = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as held:
        sources = {name.partition("/")[2] for name in held.getnames()}
    names = (name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name)
    assert {name.removeprefix("elastic_agent/") for name in names} <= sources


def test_metadata_of_the_wheel(wheel: Path) -> None:
    """Version, oldest Python and dependencies are those that the project promises; torch is not one of them."""
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().partition("\n\n")[0].splitlines()
    needed = {line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line}
    assert f"Version: {elastic_agent.__version__}" in lines
    assert "Requires-Python: >=3.10" in lines
    everywhere = ("click>=8.1", "grpcio>=1.62", "protobuf<8,>=3.20.2")
    somewhere = (
        'tomli>=2; python_version < "3.11"',
        next(line for line in lines if "zlib-ng" in line).partition(": ")[2],
    )
    assert needed == {f"Requires-Dist: {what}" for what in (*everywhere, *somewhere)}
    assert "Provides-Extra: etcd" in lines  # which adds nothing any more
    assert not [line for line in lines if line.startswith("Requires-Dist:") and "'etcd'" in line.replace('"', "'")]


def test_installed_command_and_module_start(installed: Path) -> None:
    """`elastic-agent` and `python -m elastic_agent` are the same program, and print its version."""
    away = installed.parent  # not in the checkout: only what was installed can be found
    by_command = run([str(installed / "elastic-agent"), "--version"], cwd=away)
    by_module = run([str(installed / "python"), "-m", "elastic_agent", "--version"], cwd=away)
    assert by_command == by_module
    assert elastic_agent.__version__ in by_command
    assert "FILE.toml" in run([str(installed / "elastic-agent-watch"), "--help"], cwd=away)


def test_the_installed_package_speaks_to_etcd(installed: Path) -> None:
    """Its requirements have all that the etcd backend imports: with nothing there to answer, only that is missing."""
    where = ["--rdzv-backend", "etcd", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-conf", "join_timeout=1"]
    command = [str(installed / "elastic-agent"), "--nnodes", "2", *where, os.devnull]
    done = subprocess.run(command, cwd=installed.parent, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 80
    assert "no etcd server can be reached" in done.stderr
    assert "ImportError" not in done.stderr


def test_installed_package_takes_no_other_name(installed: Path) -> None:
    """The folders of the repository cannot be imported by their bare names, which users may have for modules of
    theirs."""
    look = f"import importlib.util as u; print([name for name in {CORE!r} if u.find_spec(name)])"
    assert run([str(installed / "python"), "-c", look], cwd=installed.parent).strip() == "[]"


def test_importing_the_package_loads_no_other_module() -> None:
    """A program that only reads the version loads nothing else."""
    look = (
        "import sys; before = set(sys.modules); import elastic_agent; elastic_agent.__version__;"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['__future__', 'elastic_agent']"


@pytest.mark.timeout(600)
def test_generated_code_is_what_the_proto_files_say(tmp_path: Path) -> None:
    """After an edit of a .proto file without `make proto`, tests would use the old code, and users get the new file."""
    side_python(".protoc")
    run(["make", "--silent", "proto", f"PROTO_TO={tmp_path}", f"PYTHON={sys.executable}"], cwd=ROOT)
    made = {path.name: path.read_text() for path in (tmp_path / "elastic_agent" / "proto").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "proto").glob("*_pb2.py*")}
    assert made == kept
