"""Roles that are forks: they say and do what a program of its own does, and end as one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from p2prl_lab.testing.forked_roles import FORKING, run_fork, start_fork
from tests.loopback.program import ENVIRONMENT

pytestmark = pytest.mark.loopback


@pytest.mark.parametrize(
    "arguments", [("--version",), ("status", "no-such-run"), ("join", "p2prl://cut"), ("nothing",)]
)
def test_a_fork_says_what_a_program_says(arguments: tuple[str, ...]) -> None:
    fork = run_fork(arguments, ENVIRONMENT, timeout_s=60)
    program = subprocess.run(
        [sys.executable, "-m", "p2prl", *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (fork.returncode, fork.stdout, fork.stderr) == (program.returncode, program.stdout, program.stderr)


def test_a_fork_has_its_own_environment_and_ends_by_a_signal(tmp_path: Path) -> None:
    environment = ENVIRONMENT | {"P2PRL_HOME": str(tmp_path / "home")}
    shown = run_fork(("key", "show", "--json"), environment, timeout_s=60)
    assert json.loads(shown.stdout)["home"] == str(tmp_path / "home")
    with (tmp_path / "log").open("wb") as log:
        role = start_fork(("metrics", "--port", "0"), environment, log.fileno())
    assert role.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        role.wait(0.01)
    role.kill()
    assert role.wait(60) == -signal.SIGKILL
    role.kill()  # of one that has ended: nothing


def test_a_forked_program_has_pipes_and_the_descriptors_that_it_is_given() -> None:
    reads, writes = os.pipe()
    command = [sys.executable, "-m", "json.tool", "--compact", "-", f"/dev/fd/{writes}"]
    with FORKING.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(writes,)) as program:
        os.close(writes)
        program.stdin.write(b'{"a": [1, 2]}')
        program.stdin.close()
        with os.fdopen(reads) as given:
            assert given.read() == '{"a":[1,2]}\n'
        assert program.wait(60) == 0
    with FORKING.Popen(command[:4], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdin.write(b"[]")
        program.stdin.close()
        assert program.stdout.read() == b"[]\n"
