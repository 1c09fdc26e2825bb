"""Build the wheels of a release, check what is in the product's, and try it as a newcomer would.

    python -m scripts.check_wheel                    # dist/: both wheels; exits with 1 and names each fault
    python -m scripts.check_wheel --try pipx         # then `pipx install` it where no compiler is, and run a demo
    python -m scripts.check_wheel --try uv --option=--torch-backend=cpu

A trial takes minutes and the disk of torch. It uses the installer's own settings of this machine; `--option` is one for
pip or uv, such as those of docs/volunteers.md for a machine without a card.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

from packaging.metadata import Metadata
from packaging.requirements import Requirement

from p2prl.quantity_text import size_text
from p2prl_lab.testing.clean_install import INSTALLERS, install_wheel

ROOT = Path(__file__).resolve().parents[1]

MOST_BYTES = 4_000_000
"""Of the product's wheel: more is a file that nobody meant to ship."""

MOST_TEXT_S = 1.0
"""Until `p2prl` says something, which therefore imports no torch."""

_TRIALS = 5
_DEMO_UPDATES = 5


def faults(wheel: Path, root: Path) -> list[str]:
    """Sentences on what is wrong with the product's wheel, by its contents, its metadata and `root`/pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (about,) = {name.split("/")[0] for name in names if name.split("/")[0].endswith(".dist-info")}
        metadata = file.read(f"{about}/METADATA")
        entry = file.read(f"{about}/entry_points.txt").decode() if f"{about}/entry_points.txt" in names else ""
    found = [f"{name} is not of the product" for name in names if name.split("/")[0] not in ("p2prl", about)]
    found += [f"{name} is a test" for name in names if Path(name).name.startswith(("test_", "conftest"))]
    if not wheel.name.endswith("-py3-none-any.whl"):
        found.append(f"{wheel.name} is for one system alone")
    if wheel.stat().st_size > MOST_BYTES:
        found.append(f"{size_text(wheel.stat().st_size)} are more than {size_text(MOST_BYTES)}")
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        found.append("the license is missing")
    for program, place in project["scripts"].items():
        if f"{program} = {place}" not in entry:
            found.append(f"it brings no program {program}")
    return found + _metadata_faults(metadata, project)


def _metadata_faults(text: bytes, project: dict[str, object]) -> list[str]:
    """What a package index would refuse, and what differs from the project."""
    try:
        stated = Metadata.from_email(text, validate=True)
    except ExceptionGroup as group:
        return [f"metadata: {error}" for error in group.exceptions]
    found = [
        f"its {name} is {value}, and the project's {project[name]}"
        for name, value in (("name", stated.name), ("version", str(stated.version)))
        if value != project[name]
    ]
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    if set(stated.provides_extra or ()) != set(extras):
        found.append(f"its extras are {', '.join(sorted(stated.provides_extra or ()))}")
    required = stated.requires_dist or []
    found += [f"{each.name} comes from an address, which an index refuses" for each in required if each.url]
    wanted = {Requirement(each).name for each in project["dependencies"]}  # type: ignore[attr-defined]
    if {each.name for each in required if each.marker is None} != wanted:
        found.append("its dependencies are not the project's")
    if stated.description_content_type != "text/markdown" or not message_from_bytes(text).get_payload():
        found.append("its description is no Markdown, or empty")
    return found


def build(out: Path) -> Path:
    """Build the wheels and source archives of product and laboratory; the product's wheel."""
    for folder in (ROOT, ROOT / "lab"):
        subprocess.run(
            [sys.executable, "-m", "build", "--outdir", str(out), str(folder)], check=True, stdout=sys.stderr
        )
    return max(out.glob("p2prl-*.whl"), key=lambda path: path.stat().st_mtime)


def tried(wheel: Path, installer: str, options: list[str], folder: Path) -> dict[str, object]:
    """Install a wheel where no compiler is, look at its first texts, and run a short demo with it.

    `CalledProcessError` when a step fails.
    """
    installed = install_wheel(wheel, folder / "there", installer, options)
    times = []
    for arguments in [("--version",), ("--help",)] * _TRIALS:
        began = time.monotonic()
        installed.run(*arguments).check_returncode()
        times.append(time.monotonic() - began)
    demo = installed.run("demo", "--updates", str(_DEMO_UPDATES), "--out", str(folder / "demo"), "--json")
    sys.stderr.write(demo.stderr)
    demo.check_returncode()
    return {
        "installer": installer,
        "install_s": round(installed.seconds, 1),
        "environment_bytes": sum(path.lstat().st_size for path in installed.prefix.rglob("*")),
        "version": installed.run("--version").stdout.strip(),
        "version_s": round(sorted(times[::2])[_TRIALS // 2], 2),
        "help_s": round(sorted(times[1::2])[_TRIALS // 2], 2),
        "demo_groups": json.loads(demo.stdout.splitlines()[-1])["groups_verified"],
    }


def main() -> int:
    """Build, check, and try when asked. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", type=Path, default=ROOT / "dist")
    parser.add_argument("--try", dest="installer", choices=INSTALLERS)
    parser.add_argument("--option", action="append", default=[], help="of pip or uv; may be repeated")
    arguments = parser.parse_args()
    wheel = build(arguments.outdir)
    found = faults(wheel, ROOT)
    print("\n".join(found) or f"{wheel}: {size_text(wheel.stat().st_size)}, nothing to complain about")
    if arguments.installer is not None and not found:
        with tempfile.TemporaryDirectory(prefix="p2prl-wheel-") as folder:
            result = tried(wheel, arguments.installer, arguments.option, Path(folder))
        print(json.dumps(result, indent=2))
        if (slowest := max(float(str(result[name])) for name in ("version_s", "help_s"))) > MOST_TEXT_S:
            found.append(f"the first text took {slowest} s")
            print(found[-1])
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
