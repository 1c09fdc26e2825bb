"""Installation of a wheel as a newcomer does it: by pipx, uv or pip, into nothing, with no compiler in reach."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSTALLERS = ("pipx", "uv", "pip")


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """A program, alone in its environment."""

    prefix: Path
    """The environment's folder."""
    environment: dict[str, str]
    """Variables for what is run from it: this checkout's packages and every program of the system are out of reach."""
    seconds: float
    """That the installer's one line took."""

    @property
    def python(self) -> str:
        """The environment's interpreter."""
        return str(self.prefix / "bin" / "python")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `p2prl ARGUMENTS…`, whose standard input is closed."""
        return subprocess.run(
            [str(self.prefix / "bin" / "p2prl"), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def install_wheel(wheel: Path, folder: Path, installer: str, options: Sequence[str] = ()) -> Installed:
    """Install a wheel below `folder`, which is made; `options` go to pip, or to uv.

    `CalledProcessError` when it fails. The installer itself is fetched before the time is taken.
    """
    nothing = folder / "no-programs"
    nothing.mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if name not in _OWN}
    environment |= {"PATH": str(nothing), "PYTHONNOUSERSITE": "1", "PIPX_HOME": str(folder / "pipx")}
    environment |= {"PIPX_BIN_DIR": str(folder / "bin"), "PIPX_MAN_DIR": str(folder / "man")}
    environment |= {"UV_TOOL_DIR": str(folder / "uv"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    tools = str(folder / "tools" / "bin" / "python")
    _call([sys.executable, "-m", "venv", str(folder / "tools")], environment)
    if installer != "pip":
        _call([tools, "-m", "pip", "install", "--quiet", installer], environment)
    prefixes = {"pipx": folder / "pipx" / "venvs" / "p2prl", "uv": folder / "uv" / "p2prl", "pip": folder / "tools"}
    lines = {
        "pipx": ["pipx", "install", *(f"--pip-args={' '.join(options)}" for _ in range(bool(options)))],
        "uv": ["uv", "tool", "install", "--no-config", "--python", sys.executable, *options],
        "pip": ["pip", "install", *options],
    }
    began = time.monotonic()
    _call([tools, "-m", *lines[installer], str(wheel)], environment)
    return Installed(prefix=prefixes[installer], environment=environment, seconds=time.monotonic() - began)


_OWN = ("PYTHONPATH", "VIRTUAL_ENV", "CC", "CXX", "PYTHONHOME")
"""Variables that would lead to this checkout, or to a compiler."""


def _call(words: list[str], environment: dict[str, str]) -> None:
    subprocess.run(words, check=True, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr)
