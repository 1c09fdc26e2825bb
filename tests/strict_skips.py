"""Skips that a run with `--strict-skips` allows: any other fails it, so that no missing package hides tests."""

from __future__ import annotations

import re
import sys

import pytest
from _pytest.terminal import TerminalReporter

EXPECTED = {
    r"no CUDA device|needs a CUDA card": "a graphics card",
    r"needs (chromium on PATH|Xvfb|tmux)": "a program that pip does not install",
    r"this system (lacks|allows no|permits no|protects with)|this kernel has no|needs Landlock": "an able kernel",
    r"where nothing confines, every folder is open": "an able kernel",
    r"missing programs: |/dev/net/tun cannot be opened": "programs and a device for a network of its own",
    r"the pins are of Linux x86-64 and CPython 3.11": "the system of the locks",
    r"needs TRL": "TRL beside the pinned packages",
    r"needs root, and a folder of somebody else": "root",
}
"""Reasons of skips, and what the tests need that installing packages does not give."""

if sys.platform != "linux":
    EXPECTED[r".*"] = "Linux: make test is strict there"


def unexpected(reasons: list[str]) -> list[str]:
    """The reasons that are none of those expected, each once."""
    return sorted({reason for reason in reasons if not any(re.match(known, reason) for known in EXPECTED)})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Called by pytest."""
    parser.addoption("--strict-skips", action="store_true", help="fail when tests are skipped for an unexpected reason")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Called by pytest: a run with unexpected skips has failed."""
    if session.config.getoption("strict_skips") and unexpected(_reasons(session.config)):
        session.exitstatus = max(session.exitstatus, pytest.ExitCode.TESTS_FAILED)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Called by pytest: name what was skipped that should not be."""
    if terminalreporter.config.getoption("strict_skips"):
        for reason in unexpected(_reasons(terminalreporter.config)):
            terminalreporter.write_line(f"UNEXPECTED SKIP: {reason} (tests/strict_skips.py lists those expected)")


def _reasons(config: pytest.Config) -> list[str]:
    """Why tests and files were skipped; none in a worker, whose controller counts."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    return [report.longrepr[2].removeprefix("Skipped: ") for report in skipped]
