"""Start-up errors of the hivemind transport: each one sentence with a remedy."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import ConfigError, MachineError, TransportError, UnreachableError
from p2prl.exit_codes import NOT_AGAIN
from p2prl.net.transports.hivemind import daemon
from p2prl.net.transports.hivemind.daemon_config import DAEMON_VARIABLE
from p2prl.net.transports.hivemind.transport import HivemindTransport
from tests.loopback.hivemind_swarm import DAEMON_CONFIG, LOCAL, fresh, run, start

pytestmark = pytest.mark.loopback


async def failing(**more: Any) -> None:
    arguments: dict[str, Any] = {"listen": LOCAL, "daemon_config": DAEMON_CONFIG} | more
    transport = await HivemindTransport.start(fresh(), **arguments)
    await transport.close()


def test_unreachable_bootstrap_peers_are_named() -> None:
    nobody = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{fresh().peer_id}" for port in (1, 2)]
    with pytest.raises(UnreachableError) as caught:
        run(lambda: failing(bootstrap=nobody))
    assert all(address in str(caught.value) for address in nobody)
    assert caught.value.remedy


def test_a_peer_under_a_false_id_is_refused() -> None:
    async def scenario() -> None:
        first = await start()
        where = first.addresses[0].rpartition("/")[0]
        try:
            with pytest.raises(UnreachableError):
                await failing(bootstrap=[f"{where}/{fresh().peer_id}"])
            with pytest.raises(TransportError):
                await first.connect("/ip4/300.1.1.1/tcp/1")
        finally:
            await first.close()

    run(scenario)


def test_a_port_in_use_is_a_machine_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = (f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}",)
        with pytest.raises(MachineError, match=listen[0]) as caught:
            run(lambda: failing(listen=listen))
    assert "port" in caught.value.remedy
    with pytest.raises(MachineError, match="not an address of this machine"):
        run(lambda: failing(listen=("/ip4/192.0.2.1/tcp/0",)))
    with pytest.raises(ConfigError):
        run(lambda: failing(listen=("localhost:4001",)))


def test_a_daemon_that_cannot_run_is_a_machine_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    not_executable, wrong, silent = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    not_executable.write_text("#!/bin/sh\n")
    wrong.write_bytes(b"\x00not a program")
    wrong.chmod(0o755)
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    for path in (tmp_path / "none", not_executable, wrong, silent):
        monkeypatch.setenv(DAEMON_VARIABLE, str(path))
        with pytest.raises(MachineError) as caught:
            run(failing)
        assert caught.value.remedy
        if path is not silent:
            assert DAEMON_VARIABLE in caught.value.remedy


def test_a_daemon_that_is_slow_to_start_is_a_failure_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is busy, or just awake: a service starts the worker again."""
    binary = tmp_path / "p2pd"
    binary.write_text("#!/bin/sh\nexec sleep 60\n")
    binary.chmod(0o755)
    monkeypatch.setenv(DAEMON_VARIABLE, str(binary))
    monkeypatch.setattr(daemon, "_STARTUP_TIMEOUT_S", 0.3)
    with pytest.raises(TransportError, match="did not start within") as caught:
        run(failing)
    assert caught.value.exit_code not in NOT_AGAIN
