"""Check the Dockerfile without a container engine, and replay its pip steps in a clean environment.

    python -m scripts.check_dockerfile                      # exits with 1 and names each line that breaks a rule
    python -m scripts.check_dockerfile --replay /tmp/image  # installs as the image does, and runs its entry point
    python -m scripts.check_dockerfile --replay /tmp/image --build-arg TORCH_INDEX=https://pypi.org/simple

A replay takes minutes and the disk of torch. It uses this machine's Python and pip's own settings.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_PINNED = re.compile(r"^[\w./-]+(:\d+\.\d+\.\d+[\w.-]*|@sha256:[0-9a-f]{64})$")
_SECRET = re.compile(r"token|password|secret|credential|_key\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a Dockerfile."""

    name: str
    text: str
    stage: int
    """Number of its FROM, from 0."""


def steps_of(text: str) -> list[Step]:
    """The instructions, without comments, long lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found: list[Step] = []
    stage = -1
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            stage += name.upper() == "FROM"
            found.append(Step(name.upper(), rest.strip(), stage))
    return found


def copied(step: Step) -> list[str]:
    """Sources of a COPY from the checkout; none where it copies from another stage."""
    words = shlex.split(step.text)
    return [] if words[0].startswith("--from=") else [word for word in words if not word.startswith("--")][:-1]


def allowed_in_context(ignored: str) -> set[str]:
    """What a .dockerignore that refuses everything lets in; empty when it does not."""
    lines = [line for line in ignored.splitlines() if line and not line.startswith("#")]
    return {line[1:] for line in lines if line.startswith("!")} if lines[:1] == ["*"] else set()


def faults(text: str, *, root: Path, ignored: str) -> list[str]:
    """Sentences on what is wrong, in order; `ignored` is the text of .dockerignore."""
    steps = steps_of(text)
    found, stages = [], set[str]()
    context = allowed_in_context(ignored)
    if not context:
        found.append(".dockerignore lets a whole checkout in")
    for step in steps:
        match step.name:
            case "FROM":
                image, _, alias = step.text.partition(" AS ")
                if image not in stages and not _PINNED.match(image):
                    found.append(f"the base {image} is not pinned to a release or a digest")
                stages.add(alias)
            case "COPY":
                for source in copied(step):
                    if not (root / source).exists():
                        found.append(f"COPY {source}: there is no such file")
                    elif source not in context:
                        found.append(f"COPY {source}: .dockerignore keeps it out")
            case "ADD":
                found.append("ADD fetches and unpacks; COPY is enough")
            case "ENV" | "ARG" if _SECRET.search(step.text):
                found.append(f"{step.name} {step.text}: an image keeps what it is built with")
            case "RUN" if re.search(r"\bsudo\b|\|\s*(ba)?sh\b", step.text):
                found.append(f"RUN {step.text}: runs what it downloads, or needs sudo")
            case "RUN" if "pip install" in step.text and "--constraint constraints.txt" not in step.text:
                found.append(f"RUN {step.text}: installs versions that were not tested together")
    return found + _faults_of_last_stage(steps, root)


def _faults_of_last_stage(steps: list[Step], root: Path) -> list[str]:
    """Its user, and a program that the installation brings."""
    last = [step for step in steps if step.stage == steps[-1].stage]
    users = [step.text for step in last if step.name == "USER"]
    found = []
    if not users or users[-1].split(":")[0] in ("root", "0"):
        found.append("it runs as root")
    entry = next((step.text for step in last if step.name == "ENTRYPOINT"), "[]")
    programs = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    try:
        words = json.loads(entry)
    except ValueError:
        words = []
    if not words or words[0] not in programs:
        found.append(f"ENTRYPOINT {entry} starts nothing of this project, or a shell around it")
    return found


def replay(text: str, root: Path, folder: Path, build_args: list[str]) -> None:
    """Run the build's venv and pip steps below `folder` on what it copies, then the entry point's help.

    `build_args` are NAME=VALUE.
    """
    steps = steps_of(text)
    arguments = dict(each.split("=", 1) for each in (*(s.text for s in steps if s.name == "ARG"), *build_args))
    with tempfile.TemporaryDirectory() as source:
        for name in (name for step in steps if step.name == "COPY" for name in copied(step)):
            if (root / name).is_dir():
                shutil.copytree(root / name, Path(source) / name, symlinks=True)
            else:
                shutil.copy(root / name, source)
        for step in steps:
            if step.name != "RUN" or not re.search(r"-m venv|pip install", step.text):
                continue
            line = step.text.replace("/opt/p2prl", str(folder))
            for name, value in arguments.items():
                line = line.replace(f"${name}", value)
            words = shlex.split(line)
            words[0] = sys.executable if words[0] == "python" else words[0]
            print(shlex.join(words), flush=True)
            subprocess.run(words, cwd=source, check=True)
    for step in steps:
        if step.name == "ENTRYPOINT":
            program, *rest = json.loads(step.text)
            alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            subprocess.run([str(folder / "bin" / program), *rest, "--help"], cwd=folder, env=alone, check=True)


def main() -> int:
    """Check, and replay when asked. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replay", type=Path, help="a folder that is not there yet")
    parser.add_argument("--build-arg", action="append", default=[], help="NAME=VALUE, as for docker build")
    arguments = parser.parse_args()
    text = (ROOT / "Dockerfile").read_text()
    found = faults(text, root=ROOT, ignored=(ROOT / ".dockerignore").read_text())
    print("\n".join(found) or "Dockerfile: nothing to complain about")
    if arguments.replay is not None and not found:
        replay(text, ROOT, arguments.replay.absolute(), arguments.build_arg)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
