"""`p2prl doctor`: check this machine, repair what is safe to repair, and write a report to ask for help with."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from p2prl import exit_codes
from p2prl.cli.commands.doctor_checks import FAILED, WARNING, Finding, MachineFacts, findings
from p2prl.cli.commands.doctor_facts import machine_facts
from p2prl.cli.options import AsJson, Device, Home
from p2prl.cli.views.console import console, emit, say, show
from p2prl.config.owner_limits import load_limits
from p2prl.config.worker_folder import default_home
from p2prl.disk_full import write_error
from p2prl.errors import MachineError, P2PRLError
from p2prl.plain_text import counted
from p2prl.user_home import user_home

MOST_LOG_LINES = 200
"""Lines of a crash log, from its end: a traceback with its chain."""

_HEX = "[0-9a-fA-F]"
_IPV6 = (
    rf"(?<![\w:.])(?:(?:{_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}"
    rf"|(?:{_HEX}{{1,4}}:)*{_HEX}{{0,4}}::(?:{_HEX}{{1,4}}:)*{_HEX}{{0,4}})(?![\w:])"
)

_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"p2prl://\S+", "<link>"),
    (r"https?://\S+", "<address>"),
    (r"/(?:ip4|ip6|dns|dns4|dns6|dnsaddr|unix)/\S+", "<address>"),
    (r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b", "<mail>"),
    (r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)", "<address>"),
    (_IPV6, "<address>"),
    (r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b", "<address>"),
    (r"\b(?:12D3KooW|Qm)[1-9A-HJ-NP-Za-km-z]{20,}", "<peer>"),
    (r"\b[0-9a-fA-F]{32,}\b", "<number>"),
    (r"(?<![\w<])(?:/(?:home|Users|root|mnt|media|data|var|tmp|private|srv|opt|work)(?:/[^\s\"':,)]*)?)", "<path>"),
    (r"\b[A-Za-z]:\\[^\s\"']*", "<path>"),
)
"""What is replaced, in this order: links before the addresses in them."""

_PACKAGE = re.compile(r"(?:/[^\s\"']*)?/(p2prl|torch|transformers|site-packages)/([^\s\"',]+)")
"""Paths of a traceback keep what lies inside a package."""


def scrubbed(text: str, secrets: Mapping[str, str]) -> str:
    """`text` without addresses, links, keys, paths and what `secrets` names: its keys give way to its values."""
    kept: list[str] = []

    def unnamed(part: str) -> str:
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) > 1:
                part = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", secrets[secret], part)
        return part

    def keep(match: re.Match[str]) -> str:
        kept.append(unnamed(f"{match.group(1)}/{match.group(2)}"))
        return f"\x00_{len(kept) - 1}_\x00"

    text = unnamed(_PACKAGE.sub(keep, text.replace("\x00", "")))
    for pattern, name in _PATTERNS:
        text = re.sub(pattern, name, text)
    return re.sub("\x00_(\\d+)_\x00", lambda match: kept[int(match.group(1))], text)


def bundle_text(
    found: Sequence[Finding],
    facts: Mapping[str, object],
    logs: Mapping[str, str],
    *,
    secrets: Mapping[str, str],
) -> str:
    """The report: findings, facts by name, and the ends of crash logs by their worker folder."""
    lines = ["p2prl doctor report. Keys, addresses, names and paths were taken out.", ""]
    for finding in found:
        lines.append(f"{finding.outcome:<5} {finding.name}: {finding.text}")
        lines += [f"      {finding.cause}"] if finding.cause else []
    lines += ["", *(f"{name}: {value}" for name, value in sorted(facts.items()))]
    for name, text in logs.items():
        lines += ["", f"--- {name}", *text.splitlines()[-MOST_LOG_LINES:]]
    return scrubbed("\n".join(lines), secrets) + "\n"


OptionalLink = Annotated[
    str, typer.Argument(metavar="LINK", help="A join link, to dial its peers too. Default: none, and nobody is dialed.")
]
Fix = Annotated[bool, typer.Option("--fix", help="Repair what is safe: close keys and the home to other users.")]
Bundle = Annotated[
    Path | None,
    typer.Option("--bundle", help="Show a report without keys, addresses or names, then write it here. Default: none."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Write the report without asking.")]
SkipDevice = Annotated[
    bool, typer.Option("--skip-device", help="Leave out torch and the self-test of the device, which take seconds.")
]

Daemon = Annotated[
    Path | None,
    typer.Option(
        "--p2pd", help="Test this network daemon too: three of it on this machine, a link, a circuit. Default: none."
    ),
]


def doctor(
    link: OptionalLink = "",
    fix: Fix = False,
    bundle: Bundle = None,
    yes: Yes = False,
    skip_device: SkipDevice = False,
    p2pd: Daemon = None,
    device: Device = "auto",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: version, clock, disk, memory, keys, driver, device and network. Exit code 4 for a failure."""
    base = home or default_home()
    repaired = repair(base) if fix else []
    if not as_json:
        for text in repaired:
            say(text)
        say("checking this machine" + (", torch and the device last …" if not skip_device else " …"))
    facts = machine_facts(base, link=link, device=device, tests_device=not skip_device, p2pd=p2pd)
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
            show(line)
        say(summary_line(failures, warnings))
    if bundle is not None:
        _write_bundle(
            bundle, bundle_text(found, _bundle_facts(facts, base), _logs(base), secrets=_secrets(base)), yes=yes
        )
    if failures:
        raise typer.Exit(exit_codes.MACHINE)


_MOST_LOGS = 3
_MOST_LOG_BYTES = 64 * 1024


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


def _write_bundle(bundle: Path, text: str, *, yes: bool) -> None:
    """Show the report, and write it once its owner agrees."""
    sys.stderr.write(f"\n{text}\n")
    if not yes:
        if not (console.is_terminal and sys.stdin.isatty()):
            raise MachineError(
                "the report is shown and not written: nobody is there to agree", remedy="Read it, and add --yes."
            )
        if not typer.confirm(f"Write this to {bundle}?", err=True):
            return
    try:
        with os.fdopen(os.open(bundle, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except FileExistsError as error:
        raise MachineError(
            f"{bundle} is there already", remedy="Give another name, or delete it first; it was not touched."
        ) from error
    except OSError as error:
        raise write_error(error, bundle) from error
    say(f"Wrote {bundle}.")


def _bundle_facts(facts: MachineFacts, home: Path) -> dict[str, object]:
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


_COLUMN = 16


def finding_lines(found: Sequence[Finding]) -> list[str]:
    """One line for each finding, and two more for one with a cause."""
    lines = []
    for finding in found:
        lines.append(f"  {finding.outcome:<5} {finding.name:<9} {finding.text}")
        lines += [f"{'':<{_COLUMN}} Why: {finding.cause}"] if finding.cause else []
        lines += [f"{'':<{_COLUMN}} Try: {finding.fix}"] if finding.fix else []
    return lines


def summary_line(failures: int, warnings: int) -> str:
    """The end of the list."""
    if not failures and not warnings:
        return "All is well. This machine can join a run."
    found = [counted(count, word) for count, word in ((failures, "failure"), (warnings, "warning")) if count]
    hint = "To ask for help, show what p2prl doctor --bundle FILE writes: no keys, no addresses."
    return f"{' and '.join(found)}. {hint}"
