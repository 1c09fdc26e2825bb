"""Installation of this copy of p2prl: where it came from, and the command that updates it. Asks nobody."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from p2prl.user_home import user_home

DISTRIBUTION = "p2prl"
"""The name that it is installed under."""

_UNKNOWN = "in your clone, git pull && pip install -c constraints.txt ."
_EXTRA_IN_CLONE = "pip install -c constraints.txt '.[{extra}]', in your clone"
_AGAIN_IN_CLONE = "pip install --force-reinstall -c constraints.txt . in your clone"


@dataclass(frozen=True, slots=True)
class Installation:
    """Where this copy came from, by the record that its installer left (direct_url.json of PEP 610)."""

    clone: Path | None
    """The git checkout it was installed from, if that is still here."""
    update_command: str
    """What to type into a shell."""
    extra_command: str = _EXTRA_IN_CLONE
    """What to type for an optional part, with `{extra}` for its name."""
    again_command: str = _AGAIN_IN_CLONE
    """How to install it anew, with all that it needs."""
    repository: tuple[str, str, str] | None = None
    """Of a copy that git fetched for its installer: the address, the revision that was asked for, and its commit."""


def install_command(extra: str) -> str:
    """The command that installs an optional part, named as in pyproject.toml, and where to type it."""
    return this_installation().extra_command.replace("{extra}", extra)


@cache
def this_installation() -> Installation:
    """Where the running program came from."""
    found = list(metadata.distributions(name=DISTRIBUTION))
    if not found:  # a tree that is not installed
        return Installation(None, _UNKNOWN)
    # Where a program starts in its clone, what building it left there is found first, and has no record.
    records = (each.read_text("direct_url.json") for each in found)
    return installation_of(next(filter(None, records), None), Path(sys.prefix))


def installation_of(recorded: str | None, prefix: Path) -> Installation:
    """Read the installer's record, None for a release of a package index. `prefix` is the environment's folder."""
    tool = next((tool for tool in _TOOLS if os.path.exists(prefix / tool.mark)), _PIP)
    if recorded is None:
        return tool.installation("", tool.upgrade)
    try:
        document = json.loads(recorded)
        url, vcs = str(document["url"]), document.get("vcs_info")
        editable = bool(document.get("dir_info", {}).get("editable"))
    except (ValueError, KeyError, AttributeError, TypeError):
        return Installation(None, _UNKNOWN)
    if vcs is not None:
        source = f" @ {vcs.get('vcs', 'git')}+{url}"
        fetch = f"{tool.install} --upgrade --force-reinstall --no-deps {shlex.quote(f'{DISTRIBUTION}{source}')}"
        found = tool.installation(source, tool.upgrade if tool.keeps_source else fetch)
        asked = (url, str(vcs.get("requested_revision") or "HEAD"), str(vcs.get("commit_id", "")))
        return replace(found, repository=asked)
    if "archive_info" in document:
        return tool.installation(f" @ {url}", f"{tool.install} --upgrade WHEEL   # that of the newer release")
    folder = Path(unquote(urlsplit(url).path))
    if not (folder / ".git").exists():
        return Installation(None, _UNKNOWN)
    install = "pip install -c constraints.txt -e ." if editable else "pip install -c constraints.txt ."
    return Installation(folder, f"cd {_typed(folder)} && git pull && {install}")


@dataclass(frozen=True, slots=True)
class _Tool:
    """An installer of programs."""

    mark: str
    """A file that it leaves in the environment's folder."""
    install: str
    upgrade: str
    remove: str
    keeps_source: bool = False
    """Whether it upgrades from the place that a program came from, and installs nothing into what is there."""

    def installation(self, source: str, update_command: str) -> Installation:
        """One that came from `source`, as a requirement names it; empty for an index."""
        extra = shlex.quote(f"{DISTRIBUTION}[{{extra}}]{source if self.keeps_source else ''}")
        again = f"{self.remove}, then install it as you did, with the torch that fits this machine"
        return Installation(None, update_command, f"{self.install} {extra}", again)


_PIP = _Tool("", "pip install", "pip install --upgrade p2prl", "pip uninstall p2prl torch")
_TOOLS = (
    _Tool("pipx_metadata.json", "pipx runpip p2prl install", "pipx upgrade p2prl", "pipx uninstall p2prl"),
    _Tool(
        "uv-receipt.toml",
        "uv tool install --python 3.12 --torch-backend auto",
        "uv tool upgrade p2prl",
        "uv tool uninstall p2prl",
        keeps_source=True,
    ),
)


def _typed(folder: Path) -> str:
    """The folder as a shell takes it, from the user's home if it is there."""
    if (home := user_home()) is not None and folder.is_relative_to(home) and folder != home:
        return f"~/{shlex.quote(str(folder.relative_to(home)))}"
    return shlex.quote(str(folder))
