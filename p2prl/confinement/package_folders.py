"""Python's packages that confined processes may read: where the interpreter finds them when it starts.

A folder is readable as a whole if it holds packages and nothing else, with what its entries link to. The home folder
and those above it never are, and a folder that holds its owner's other files, such as a project's, is not either: it
may hold a run with its keys. Of an editable installation the package alone is readable.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import all_suffixes
from importlib.metadata import distributions
from pathlib import Path

from p2prl.errors import ConfigError
from p2prl.user_home import user_home

_FOLDER_NAMES = ("site-packages", "dist-packages")
"""Names that say what a folder holds, wherever it is."""

_METADATA = (".dist-info", ".egg-info", ".egg")
_PACKED = (".egg", ".whl", ".zip")
_BESIDE_PACKAGES = (
    *all_suffixes(),
    *_METADATA,
    *(".pth", ".pyi", ".egg-link", ".libs", "__pycache__", ".lock", ".DS_Store"),
)
"""Ends of names that Python or an installer gives to what is no package."""

_LEVELS = 3
"""Levels of folders in which links are looked for: packages, and namespaces such as `nvidia/cu13/lib`."""

NEEDED = (
    *("blake3", "cryptography", "hivemind", "jinja2", "msgpack", "msgspec", "numba", "numpy", "packaging", "peft"),
    *("psutil", "safetensors", "tokenizers", "torch", "transformers", "zstandard"),
)
"""What workers import after they are confined."""


def package_paths() -> Iterator[Path]:
    """Files and folders to read, links resolved, besides the interpreter's own library."""
    for folder in package_folders():
        yield folder
        yield from _native_libraries(folder)
    yield from (Path(entry) for entry in sys.path if Path(entry).suffix in _PACKED and os.path.isfile(entry))
    yield from filter(_is_package, module_paths(_editable_modules()))


def package_folders() -> Iterator[Path]:
    """Folders that hold packages and nothing else, and what their entries link to."""
    paths = sysconfig.get_paths()
    known = [Path(paths[name]) for name in ("purelib", "platlib")]
    for folder in dict.fromkeys((*known, *(Path(entry).absolute() for entry in sys.path))):
        if _is_readable_whole(folder):
            yield folder
            yield from _link_targets(folder)


def module_paths(names: Iterable[str]) -> Iterator[Path]:
    """Where the interpreter finds modules, without importing them."""
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None:
            yield from map(Path, spec.submodule_search_locations or ([spec.origin] if spec.origin else []))


def check_packages(readable: Iterable[Path], names: Iterable[str] = NEEDED) -> None:
    """`ConfigError` naming the first package that a process would not find once it reads `readable` alone."""
    allowed = {Path(os.path.realpath(path)) for path in readable}
    for name in names:
        for found in module_paths([name]):
            place = Path(os.path.realpath(found))
            if place.is_absolute() and os.path.exists(place) and allowed.isdisjoint((place, *place.parents)):
                folder = found.parent
                why = "your home folder or one above it" if holds_home(folder) else "which holds other files too"
                raise ConfigError(
                    f"Python finds {name} in {folder}, {why}: confined processes do not read it",
                    remedy="Install p2prl in a virtual environment, or packages in a folder of their own "
                    "(pip install --target FOLDER), and have PYTHONPATH name nothing else.",
                )


def _is_readable_whole(folder: Path) -> bool:
    if not os.path.isdir(folder) or holds_home(folder):
        return False
    if folder.name in _FOLDER_NAMES:
        return True
    named = str(folder) in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return _holds_packages_alone(folder, named=named)


def _is_package(place: Path) -> bool:
    """Whether a module's place is its package, and no folder that has its name alone, as that of its project has."""
    if os.path.isdir(place) and not os.path.isfile(place / "__init__.py"):
        return not holds_home(place) and _holds_packages_alone(place, named=True)
    return True


def holds_home(folder: Path) -> bool:
    """Whether a folder is the user's home or one above it, links resolved."""
    homes = [user_home()]
    with suppress(KeyError):  # a service's user may have none
        homes.append(Path(pwd.getpwuid(os.getuid()).pw_dir))  # `$HOME` may be another one, as in a tokenizer's process
    place = Path(os.path.realpath(folder))
    return any(home is not None and Path(os.path.realpath(home)).is_relative_to(place) for home in homes)


def _holds_packages_alone(folder: Path, *, named: bool) -> bool:
    """Whether an installer made the folder, or its owner named it in PYTHONPATH, and nobody put other files there."""
    with suppress(OSError), os.scandir(folder) as entries:
        others, installed = [], named
        for entry in entries:
            installed = installed or entry.name.endswith(_METADATA)
            if not entry.name.endswith(_BESIDE_PACKAGES) and not os.path.isfile(os.path.join(entry, "__init__.py")):
                others.append(entry.name)
        return installed and (not others or set(others) <= _recorded(folder))
    return False


def _recorded(folder: Path) -> set[str]:
    """Names in a folder that the packages installed there account for: namespaces, data, scripts."""
    names = set()
    for record in folder.glob("*.dist-info/RECORD"):
        with suppress(OSError), record.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                parts = line.strip('"').split("/")
                names.add(next((part for part in parts[:-1] if part != ".."), ""))
    return names


def _link_targets(folder: Path) -> Iterator[Path]:
    """What a folder, its entries, and the entries of its packages link to."""
    place = Path(os.path.realpath(folder))
    for target in dict.fromkeys(_links_in(folder, folder.name, levels=_LEVELS)):
        if os.path.exists(target) and not target.is_relative_to(place) and not holds_home(target):
            yield target


def _links_in(folder: str | Path, name: str, *, levels: int) -> Iterator[Path]:
    """Targets of links in a folder `name`, in those below it, and in namespaces, which hold folders alone."""
    entries = _entries(folder)
    for entry in entries:
        if entry.is_symlink():
            target = Path(os.path.realpath(entry))
            # An installer that links files one by one has the whole package in one place.
            yield target.parent if levels < _LEVELS and target.parent.name == name else target
    if levels == _LEVELS or (levels and all(entry.is_dir(follow_symlinks=False) for entry in entries)):
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _links_in(entry.path, entry.name, levels=levels - 1)


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _native_libraries(folder: Path) -> Iterator[Path]:
    """Libraries of a conda environment, beside its folder of packages: `lib` above `python3.11/site-packages`."""
    library = folder.parent.parent
    if library.name == "lib" and (library.parent / "conda-meta").is_dir():
        yield library


def _editable_modules() -> Iterator[str]:
    """Modules of distributions that are installed in place."""
    for distribution in distributions():
        with suppress(OSError, ValueError, AttributeError):
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
            if origin.get("dir_info", {}).get("editable"):
                named = (distribution.read_text("top_level.txt") or "").split()
                yield from named or [distribution.name.replace("-", "_").replace(".", "_")]
