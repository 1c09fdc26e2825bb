"""Installation of this copy of p2prl: where it came from, and the command that updates it. Asks nobody."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from p2prl.user_home import user_home

DISTRIBUTION = "p2prl"
"""The name that it is installed under."""

_UNKNOWN = "in your clone, git pull && pip install -c constraints.txt ."


@dataclass(frozen=True, slots=True)
class Installation:
    """Where this copy came from, by the record that its installer left (direct_url.json of PEP 610)."""

    clone: Path | None
    """The git checkout it was installed from, if that is still here."""
    update_command: str
    """What to type into a shell."""


def install_command(extra: str) -> str:
    """The command that installs an optional part, named as in pyproject.toml; to be typed in the clone."""
    return f"pip install -c constraints.txt '.[{extra}]'"


def this_installation() -> Installation:
    """Where the running program came from."""
    try:
        recorded = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # a tree that is not installed
        return Installation(None, _UNKNOWN)
    return installation_of(recorded, Path(sys.prefix))


def installation_of(recorded: str | None, prefix: Path) -> Installation:
    """Read the installer's record, None for a release of a package index. `prefix` is the environment's folder."""
    if recorded is None:
        is_tool = (prefix / "uv-receipt.toml").exists()
        return Installation(None, f"uv tool upgrade {DISTRIBUTION}" if is_tool else "pip install --upgrade p2prl")
    try:
        document = json.loads(recorded)
        url, vcs = str(document["url"]), document.get("vcs_info")
        editable = bool(document.get("dir_info", {}).get("editable"))
    except (ValueError, KeyError, AttributeError, TypeError):
        return Installation(None, _UNKNOWN)
    if vcs is not None:
        requirement = shlex.quote(f"{DISTRIBUTION} @ {vcs.get('vcs', 'git')}+{url}")
        return Installation(None, f"pip install --upgrade --force-reinstall --no-deps {requirement}")
    folder = Path(unquote(urlsplit(url).path))
    if not (folder / ".git").exists():
        return Installation(None, _UNKNOWN)
    install = "pip install -c constraints.txt -e ." if editable else "pip install -c constraints.txt ."
    return Installation(folder, f"cd {_typed(folder)} && git pull && {install}")


def _typed(folder: Path) -> str:
    """The folder as a shell takes it, from the user's home if it is there."""
    if (home := user_home()) is not None and folder.is_relative_to(home) and folder != home:
        return f"~/{shlex.quote(str(folder.relative_to(home)))}"
    return shlex.quote(str(folder))
