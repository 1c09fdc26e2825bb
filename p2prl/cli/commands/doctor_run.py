"""Run the doctor's checks, repair, print, and write the report its owner has seen."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from p2prl import exit_codes
from p2prl.cli.commands.doctor_bundle import bundle_text
from p2prl.cli.commands.doctor_checks import FAILED, WARNING, MachineFacts, findings
from p2prl.cli.commands.doctor_facts import machine_facts
from p2prl.cli.views.console import console, emit, say
from p2prl.cli.views.doctor_view import finding_lines, summary_line
from p2prl.config.owner_limits import load_limits
from p2prl.config.worker_folder import default_home
from p2prl.disk_full import write_error
from p2prl.errors import MachineError, P2PRLError
from p2prl.user_home import user_home

_MOST_LOGS = 3
_MOST_LOG_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorRequest:
    """What the owner of the machine asked for."""

    link: str
    fix: bool
    bundle: Path | None
    yes: bool
    tests_device: bool
    device: str
    p2pd: Path | None = None
    """A network daemon to test."""


def run_doctor(request: DoctorRequest, *, home: Path | None, as_json: bool) -> None:
    """Check and print. Ends with `MachineError`'s exit code when a check fails."""
    base = home or default_home()
    repaired = repair(base) if request.fix else []
    if not as_json:
        for text in repaired:
            say(text)
        say("checking this machine" + (", torch and the device last …" if request.tests_device else " …"))
    facts = machine_facts(
        base, link=request.link, device=request.device, tests_device=request.tests_device, p2pd=request.p2pd
    )
    found = findings(facts)
    failures = sum(finding.outcome == FAILED for finding in found)
    warnings = sum(finding.outcome == WARNING for finding in found)
    if as_json:
        emit(
            {
                "checks": [asdict(finding) for finding in found],
                "failures": failures,
                "warnings": warnings,
                "repaired": repaired,
                "time": time.time(),
            }
        )
    else:
        for line in finding_lines(found):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        say(summary_line(failures, warnings))
    if request.bundle is not None:
        _write_bundle(request, bundle_text(found, _bundle_facts(facts, base), _logs(base), secrets=_secrets(base)))
    if failures:
        raise typer.Exit(exit_codes.MACHINE)


def repair(home: Path) -> list[str]:
    """Close the home and its keys to other users; what was done, in sentences."""
    done = []
    for path, mode in [(home, 0o700), *((path, 0o600) for path in sorted(home.glob("*/key.json")))]:
        with suppress(OSError):
            if path.stat().st_mode & 0o077 and path.stat().st_uid == os.geteuid():
                path.chmod(mode)
                name = "the home folder" if path == home else f"{path.parent.name}/{path.name}"
                done.append(f"Closed {name} to other users (mode {mode:04o}).")
    return done


def _write_bundle(request: DoctorRequest, text: str) -> None:
    """Show the report, and write it once its owner agrees."""
    assert request.bundle is not None
    sys.stderr.write(f"\n{text}\n")
    if not request.yes:
        if not (console.is_terminal and sys.stdin.isatty()):
            raise MachineError(
                "the report is shown and not written: nobody is there to agree", remedy="Read it, and add --yes."
            )
        if not typer.confirm(f"Write this to {request.bundle}?", err=True):
            return
    try:
        with os.fdopen(os.open(request.bundle, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except FileExistsError as error:
        raise MachineError(
            f"{request.bundle} is there already", remedy="Give another name, or delete it first; it was not touched."
        ) from error
    except OSError as error:
        raise write_error(error, request.bundle) from error
    say(f"Wrote {request.bundle}.")


def _bundle_facts(facts: MachineFacts, home: Path) -> dict[str, Any]:
    """Facts for the report: the machine's, without its files' names, and the limits that are not defaults."""
    shown = {name: value for name, value in asdict(facts).items() if name not in ("keys", "dialed", "home_error")}
    with suppress(P2PRLError):
        limits = load_limits(home).document()
        shown["limits"] = {name: each["value"] for name, each in limits.items() if each["origin"] != "default"}
    return {**shown, "system": f"{platform.system()} {platform.machine()}"}


def _logs(home: Path) -> dict[str, str]:
    """The newest crash logs, by worker folder."""
    paths = sorted(home.glob("*/crash-*.log"), key=lambda path: path.stat().st_mtime)[-_MOST_LOGS:]
    found = {}
    for path in paths:
        with suppress(OSError), path.open("rb") as file:
            found[f"{path.parent.name}/{path.name}"] = file.read(_MOST_LOG_BYTES).decode("utf-8", "replace")
    return found


def _secrets(home: Path) -> dict[str, str]:
    """What names this machine and its user, and what stands in its place."""
    found = {
        str(home): "<home>",
        str(user_home() or ""): "<home>",
        socket.gethostname(): "<host>",
        platform.node(): "<host>",
    }
    found[socket.gethostname().partition(".")[0]] = "<host>"
    with suppress(OSError, KeyError):
        found[getpass.getuser()] = "<user>"
    return {secret: name for secret, name in found.items() if secret not in ("", "/")}
