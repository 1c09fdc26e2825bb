"""The self-test of a network daemon, with the one that is installed and with programs that are none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from p2prl.net.transports.hivemind.daemon_config import installed_daemon
from p2prl.net.transports.hivemind.daemon_self_test import self_test


def test_the_installed_daemon_passes() -> None:
    steps = asyncio.run(self_test(installed_daemon()))
    assert [(step.name, step.passed) for step in steps] == [("start", True), ("frames", True), ("circuit", True)], steps


@pytest.mark.parametrize("program", ["/bin/true", "/nowhere/p2pd"])
def test_another_program_fails_at_its_start(program: str) -> None:
    (step,) = asyncio.run(self_test(Path(program)))
    assert (step.name, step.passed) == ("start", False)
    assert step.text
