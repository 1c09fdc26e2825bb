"""Packages where people have them: confined processes import from there, and read nothing that lies beside them.

Each case starts real processes, confined as a role, as a network process and as a calculator.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from p2prl.confinement import linux
from p2prl.confinement.layers import readable_paths
from p2prl.confinement.package_folders import NEEDED, check_packages
from p2prl.confinement.role_files import role_access
from p2prl.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not linux.landlock_version(), reason="needs Landlock")

PROGRAM = """
import ctypes, json, os, sys
from pathlib import Path
from p2prl.confinement.compute_only import confine_to_computing
from p2prl.confinement.role_confinement import confine_files, confine_network
own, closed, library = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def reaches(step):
    try:
        step()
    except (ImportError, OSError) as error:
        return type(error).__name__
    return "yes"

def imported():
    import sample.part
    assert sample.part.TEXT == "data"

found = {}
for name, confine in {
    "role": lambda: confine_files(own),
    "network": lambda: confine_network(own, own, ()),
    "calculator": lambda: confine_to_computing(memory_bytes=1 << 30),
}.items():
    reading, writing = os.pipe()
    if os.fork() == 0:
        confine()
        told = {"import": reaches(imported)}
        if closed:
            told["closed"] = reaches(lambda: open(closed).close())
        if library:
            told["library"] = reaches(lambda: ctypes.CDLL(library))
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    found[name] = json.loads(os.read(reading, 1 << 12) or "null")
print(json.dumps(found))
"""


@dataclass
class Place:
    """Where the package is, and how Python is told."""

    path: Path | None = None
    """Entry of PYTHONPATH."""
    user_base: Path | None = None
    closed: Path | None = None
    """A file of the owner's beside it, which nothing may read."""
    library: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = ROOT
    """Working folder."""


def outcomes(place: Place, own: Path) -> dict[str, dict[str, str]]:
    own.mkdir()
    paths = [str(path) for path in (place.path, ROOT) if path is not None]
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(own.parent / "home"), "PYTHONPATH": os.pathsep.join(paths),
        **place.environment,
    }  # fmt: skip
    if place.user_base is not None:
        environment["PYTHONUSERBASE"] = str(place.user_base)
    arguments = [str(own), str(place.closed or ""), str(place.library or "")]
    done = subprocess.run(
        [BASE_PYTHON, "-c", PROGRAM, *arguments],
        capture_output=True, text=True, cwd=place.folder, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def package(folder: Path) -> Path:
    """A package with a module and a file of data."""
    made = folder / "sample"
    made.mkdir(parents=True)
    (made / "__init__.py").touch()
    (made / "part.py").write_text("from pathlib import Path\nTEXT = Path(__file__).with_name('text').read_text()\n")
    (made / "text").write_text("data")
    return made


def metadata(folder: Path, *, editable: bool = False, top_level: str = "") -> None:
    made = folder / "sample-1.0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n")
    (made / "RECORD").write_text("sample/__init__.py,,\nspace/sample/text,,\n../../bin/sample,,\n")
    if editable:
        (made / "direct_url.json").write_text('{"url": "file:///somewhere", "dir_info": {"editable": true}}')
    if top_level:
        (made / "top_level.txt").write_text(f"{top_level}\n")


def a_library(at: Path) -> Path:
    """Any shared library, copied."""
    source = next(Path(sysconfig.get_paths()["stdlib"], "lib-dynload").glob("_bisect*.so"))
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(source.read_bytes())
    return at


def target(home: Path) -> Place:
    """As `pip install --target` makes it, with the folders of a namespace and of scripts."""
    folder = home / "packages"
    package(folder)
    metadata(folder)
    for name in ("space/sample", "bin", "sample.libs"):
        (folder / name).mkdir(parents=True)
    return Place(folder, closed=_secret(home), library=a_library(folder / "sample.libs" / "libsample.so"))


def plain_folder(home: Path) -> Place:
    """Packages that nobody installed, in a folder that the owner names."""
    return Place(package(home / "plain").parent, closed=_secret(home))


def linked_folder(home: Path) -> Place:
    place = target(home)
    assert place.path is not None
    (home / "link").symlink_to(place.path)
    return Place(home / "link", closed=place.closed)


def store(home: Path) -> Place:
    """Each package is a link into a store, as in nix's environments."""
    environment = home / "environment" / SITE
    environment.mkdir(parents=True)
    (environment / "sample").symlink_to(package(home / "store" / "abc-sample" / SITE))
    return Place(environment, closed=_secret(home / "store"))


def linked_files(home: Path) -> Place:
    """Each file is a link into a cache, as `uv pip install --link-mode symlink` makes them."""
    environment, cached = home / "environment" / SITE, package(home / "cache" / "abc")
    (environment / "sample").mkdir(parents=True)
    for file in cached.iterdir():
        (environment / "sample" / file.name).symlink_to(file)
    library = environment / "vendor" / "kernels" / "lib" / "libsample.so"
    library.parent.mkdir(parents=True)
    library.symlink_to(a_library(home / "cache" / "def" / "vendor" / "kernels" / "lib" / "libsample.so"))
    return Place(environment, closed=_secret(home / "cache" / "abc"), library=library)


def conda(home: Path) -> Place:
    """Packages of a conda environment, with the libraries that they load."""
    (home / "conda" / "conda-meta").mkdir(parents=True)
    package(home / "conda" / SITE)
    library = a_library(home / "conda" / "lib" / "libsample.so")
    return Place(home / "conda" / SITE, closed=_secret(home / "conda"), library=library)


def user_site(home: Path) -> Place:
    package(home / "base" / SITE)
    return Place(user_base=home / "base", closed=_secret(home / "base"))


def debian(home: Path) -> Place:
    return Place(package(home / "usr" / "lib" / "python3" / "dist-packages").parent, closed=_secret(home / "usr"))


def editable_source(home: Path) -> Place:
    """A line of a `.pth` file names the project's `src`."""
    site = home / "base" / SITE
    metadata(site, editable=True)
    project = home / "project"
    package(project / "src")
    (site / "_sample.pth").write_text(f"{project / 'src'}\n")
    return Place(user_base=home / "base", closed=_secret(project))


def editable_project(home: Path) -> Place:
    """A line of a `.pth` file names the project itself."""
    site = home / "base" / SITE
    metadata(site, editable=True, top_level="sample")
    package(home / "project")
    (site / "_sample.pth").write_text(f"{home / 'project'}\n")
    return Place(user_base=home / "base", closed=_secret(home / "project"))


FINDER = """
import importlib.util, sys
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "sample":
            return importlib.util.spec_from_file_location(name, {file!r}, submodule_search_locations=[{folder!r}])
sys.meta_path.append(Finder)
"""


def editable_finder(home: Path) -> Place:
    """A `.pth` file installs a finder that knows where the package is."""
    site = home / "base" / SITE
    metadata(site, editable=True, top_level="sample")
    made = package(home / "project")
    (site / "_sample_finder.py").write_text(FINDER.format(file=str(made / "__init__.py"), folder=str(made)))
    (site / "_sample.pth").write_text("import _sample_finder\n")
    return Place(user_base=home / "base", closed=_secret(home / "project"))


def _secret(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key.json").write_text("secret")
    return folder / "key.json"


PLACES = [
    target, plain_folder, linked_folder, store, linked_files, conda, user_site, debian, editable_source,
    editable_project, editable_finder,
]  # fmt: skip


@pytest.mark.parametrize("make", PLACES, ids=lambda make: make.__name__)
def test_confined_processes_import_from_there_and_read_nothing_beside_it(
    make: Callable[[Path], Place], tmp_path: Path
) -> None:
    place = make(tmp_path / "home")
    wanted = {"import": "yes", "closed": "PermissionError"} | ({"library": "yes"} if place.library else {})
    found = outcomes(place, tmp_path / "own")
    assert found == dict.fromkeys(("role", "network", "calculator"), wanted)


def home_folder(home: Path) -> Place:
    """`pip install --target ~` and PYTHONPATH=$HOME."""
    package(home)
    metadata(home)
    return Place(home, closed=_secret(home / "sample"))


def above_home(home: Path) -> Place:
    package(home.parent)
    metadata(home.parent)
    return Place(home.parent, closed=_secret(home.parent / "sample"))


def project(home: Path) -> Place:
    """Packages among the owner's other files."""
    package(home / "project")
    metadata(home / "project")
    _secret(home / "project" / "runs")
    return Place(home / "project", closed=_secret(home / "project" / "sample"))


def working_folder(home: Path) -> Place:
    """Python looks there first; nobody named it."""
    folder = package(home / "work").parent
    return Place(folder=folder, closed=_secret(folder / "sample"))


def project_of_the_name(home: Path) -> Place:
    """An installation in place, started beside its project, whose folder has the package's name."""
    metadata(home / "base" / SITE, editable=True, top_level="sample")
    return Place(user_base=home / "base", folder=home / "work", closed=_secret(home / "work" / "sample"))


CLOSED = [home_folder, above_home, project, working_folder, project_of_the_name]


@pytest.mark.parametrize("make", CLOSED, ids=lambda make: make.__name__)
def test_folders_of_the_owners_other_files_stay_closed(make: Callable[[Path], Place], tmp_path: Path) -> None:
    (tmp_path / "above" / "home").mkdir(parents=True)
    home = tmp_path / "above" / "home"
    environment = {"HOME": str(home)}
    found = outcomes(replace(make(home), environment=environment), tmp_path / "own")
    assert {told["closed"] for told in found.values()} == {"PermissionError"}
    assert "yes" not in {told["import"] for told in found.values()}


@pytest.mark.parametrize(
    ("make", "why"),
    [(home_folder, "your home folder"), (above_home, "or one above it"), (project, "which holds other files too")],
    ids=["home", "above home", "project"],
)
def test_a_needed_package_out_of_reach_is_named_before_anything_starts(
    make: Callable[[Path], Place], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "above" / "home").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "above" / "home"))
    place = make(tmp_path / "above" / "home")
    monkeypatch.syspath_prepend(str(place.path))
    readable = tuple(readable_paths())
    with pytest.raises(ConfigError, match=f"Python finds sample in {place.path}, .*{why}") as error:
        check_packages(readable, ["numpy", "sample"])
    assert "--target" in error.value.remedy
    check_packages(readable, ["numpy", "no_such_package"])
    check_packages((*readable, place.path / "sample"), ["sample"])  # type: ignore[operator]


def test_a_link_to_the_home_folder_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "data" / "alice"
    home.mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "data")
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "alice"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "data"))
    assert tmp_path / "data" not in role_access(tmp_path / "own").readable


def test_what_workers_need_is_what_the_program_depends_on() -> None:
    """Every module named is one of a dependency, so a renamed one is noticed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[><=]", line)[0] for line in project["dependencies"]}
    assert set(NEEDED) - required == {"tokenizers"}, "transformers brings it"
