"""Bad input from people and disks to the real program: one sentence, the documented exit code, nothing lost."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from p2prl.protocol.digests import digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink, parse_link
from tests.loopback.program import (
    LISTEN,
    SETTINGS,
    RunningRole,
    eventually,
    live_learner,
    make_run,
    p2prl,
    refused,
    running,
    spool_groups,
    spool_states,
    volunteer_status,
)

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RunningRole]]:
    """A run folder and its learner, which runs until the tests of this file are done."""
    with live_learner(tmp_path_factory.mktemp("live")) as found:
        yield found


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def policies(run: Path) -> list[tuple[int, int]]:
    """(version, step) of a learner's published policies."""
    with closing(sqlite3.connect(f"file:{run / 'journal.db'}?mode=ro", uri=True)) as journal:
        return list(journal.execute("SELECT version, step FROM policies ORDER BY version"))


def test_a_link_that_was_cut_off(tmp_path: Path) -> None:
    refused(p2prl("join", "p2prl://chain@abcdef", "--home", tmp_path / "home"), 3, "cut off")
    assert not (tmp_path / "home").exists()


def test_unreachable_join_link(tmp_path: Path) -> None:
    stranger = Identity(bytes(range(16))).peer_id
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link = JoinLink("gone", digest("p2prl/test-run", b""), (f"/ip4/127.0.0.1/tcp/{port}/p2p/{stranger}",))
    refused(p2prl("join", link, "--home", tmp_path, *LISTEN), 7, "no peer of the run answered")
    shown = json.loads(p2prl("key", "show", "--home", tmp_path, "--json").stdout)
    assert list(shown["seats"]) == ["seat-1"], "the key stays for the next try"


def test_a_typo_in_run_toml_and_a_key_open_to_others(run: Path) -> None:
    toml = run / "run.toml"
    toml.write_text(toml.read_text().replace("checkpoint_every", "checkpoint_evry"))
    result = p2prl("learn", run)
    refused(result, 3, "unknown key 'checkpoint_evry'")
    assert "Did you mean 'checkpoint_every'?" in result.stderr
    toml.write_text(SETTINGS)
    (run / "key.json").chmod(0o644)
    result = p2prl("learn", run)
    refused(result, 6, "open to other users")
    assert f"chmod 600 {run / 'key.json'}" in result.stderr


def test_a_port_in_use(run: Path, taken_port: int) -> None:
    refused(p2prl("learn", run, "--listen", f"/ip4/127.0.0.1/tcp/{taken_port}"), 4, "another program already uses")


def test_a_known_run_is_sampled_without_any_peer(live: tuple[Path, RunningRole], tmp_path: Path) -> None:
    folder, _ = live
    link, home = parse_link((folder / "link").read_text()), tmp_path / "home"
    with running(tmp_path / "first.log", "join", link, "--home", home, *LISTEN, "--threads", 1) as first:
        eventually(lambda: sum(volunteer_status(home).get("groups", {}).values()) > 0)
        assert first.stop() == 130
    before = sum(spool_states(home).values())
    stranger = Identity(bytes(range(16))).peer_id
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}/p2p/{stranger}"
    alone = JoinLink(link.name, link.run, (nobody,))
    with running(tmp_path / "again.log", "join", alone, "--home", home, *LISTEN, "--threads", 1) as again:
        eventually(lambda: sum(spool_states(home).values()) > before)
        assert again.stop() == 130
        assert "continuing alone and trying again" in again.said()
        assert "Traceback" not in again.said()


def test_a_full_disk_publishes_nothing_and_recovers(run: Path, tmp_path: Path) -> None:
    result = p2prl("learn", run, "--updates", 1, *LISTEN, file_limit=200_000)  # weights need 236 kB, the journal 100
    refused(result, 4, "cannot write in")
    assert policies(run) == []
    with running(tmp_path / "again.log", "learn", run, "--updates", 1, *LISTEN) as again:
        eventually(lambda: policies(run) == [(0, 0)])
        assert again.stop() == 130
        assert "Traceback" not in again.said()


def test_a_full_disk_loses_no_group(live: tuple[Path, RunningRole], tmp_path: Path) -> None:
    folder, _ = live
    link, home = (folder / "link").read_text().strip(), tmp_path / "home"
    result = p2prl("join", link, "--home", home, *LISTEN, "--threads", 1, "--slots", 2, file_limit=300_000)
    refused(result, 4, "cannot write the spool")
    finished = set(spool_groups(home))
    assert finished

    def is_recovered() -> bool:
        """Every group of the full disk counts, and the worker samples others."""
        now = spool_groups(home)
        return all(now[digest] == "verified" for digest in finished) and len(now) > len(finished)

    with running(tmp_path / "again.log", "join", link, "--home", home, *LISTEN, "--threads", 1) as again:
        eventually(is_recovered)
        assert again.stop() == 130
    assert spool_states(home).get("rejected", 0) == 0
