"""Worker folders: one per process, locks that end with the process, keys only the owner can read."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from p2prl.cli.commands.status import workers_of
from p2prl.config.network_options import known_run, remember_run
from p2prl.config.worker_folder import (
    check_home,
    check_home_name,
    claim_worker_folder,
    default_home,
    try_lock,
    write_status,
)
from p2prl.errors import ConfigError, IdentityError, MachineError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest

HOLD = """
import sys
from pathlib import Path
from p2prl.config.worker_folder import claim_worker_folder
folder = claim_worker_folder(Path(sys.argv[1]))
print(folder.directory.name, folder.identity.peer_id, flush=True)
sys.stdin.read()
"""


def test_two_workers_claim_two_folders_with_two_keys(tmp_path: Path) -> None:
    first, second = claim_worker_folder(tmp_path), claim_worker_folder(tmp_path)
    assert (first.directory.name, second.directory.name) == ("seat-1", "seat-2")
    assert first.identity.public_key != second.identity.public_key
    first.release()
    again = claim_worker_folder(tmp_path)
    assert again.directory == first.directory
    assert again.identity.public_key == first.identity.public_key
    validator = claim_worker_folder(tmp_path, kind="validator")
    assert validator.directory.name == "validator-1"
    for folder in (second, again, validator):
        folder.release()


def test_a_key_that_was_listed_once_is_known_for_that_at_every_later_start(tmp_path: Path) -> None:
    first, second = claim_worker_folder(tmp_path), claim_worker_folder(tmp_path)
    told = [first.was_listed(is_listed=now) for now in (False, False, True, True, False, False)]
    assert told == [False, False, False, True, True, True]
    assert not second.was_listed(is_listed=False), "it has a key of its own"
    for folder in (first, second):
        folder.release()


def test_killed_worker_releases_its_folder(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    name, peer = worker.stdout.readline().split()
    other = claim_worker_folder(tmp_path)
    assert (name, other.directory.name) == ("seat-1", "seat-2")
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    mine = claim_worker_folder(tmp_path)
    assert (mine.directory.name, mine.identity.peer_id) == ("seat-1", peer)
    other.release()
    mine.release()


def test_only_the_owner_can_read_a_folder_and_its_key(tmp_path: Path) -> None:
    folder = claim_worker_folder(tmp_path / "home")
    assert stat.S_IMODE(folder.home.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.key_file.stat().st_mode) == 0o600
    folder.release()
    folder.key_file.chmod(0o640)
    with pytest.raises(IdentityError, match="open to other users") as caught:
        claim_worker_folder(tmp_path / "home")
    assert caught.value.remedy == f"chmod 600 {folder.key_file}"
    folder.key_file.chmod(0o600)
    claim_worker_folder(tmp_path / "home").release()  # the refusal released the folder


def test_unusable_home_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot use") as caught:
        claim_worker_folder(tmp_path / "file")
    assert "another folder" in caught.value.remedy


def test_workers_are_listed_while_others_start(tmp_path: Path) -> None:
    """A listing looks into every folder of a home; what a start tries there must not be one that vanishes meanwhile."""

    def start() -> None:
        for _ in range(500):
            check_home(tmp_path)

    with ThreadPoolExecutor(1) as pool:
        starts = pool.submit(start)
        while not starts.done():
            assert workers_of(tmp_path) == []
        starts.result()


def test_full_disk_under_a_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(IdentityError, match=r"cannot write the key file .*No space left"):
            claim_worker_folder(tmp_path)
    claim_worker_folder(tmp_path).release()


def test_lock_is_held_once(tmp_path: Path) -> None:
    lock = try_lock(tmp_path)
    assert lock is not None
    assert try_lock(tmp_path) is None
    lock.close()
    again = try_lock(tmp_path)
    assert again is not None
    again.close()


def test_home_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PRL_HOME", str(tmp_path))
    assert default_home() == tmp_path
    monkeypatch.delenv("P2PRL_HOME")
    assert default_home().name == "p2prl"


def test_status_is_written_completely_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "run" / "status.json"
    write_status(path, {"state": "sampling"})
    written = json.loads(path.read_text())
    assert (written["state"], written["pid"]) == ("sampling", os.getpid())
    assert written["resident_bytes"] > 1_000_000
    path.unlink()
    path.mkdir()
    with pytest.raises(MachineError, match="cannot write"):
        write_status(path, {})


def test_damaged_run_manifest_is_ignored(tmp_path: Path) -> None:
    raw = b"manifest envelope"
    run = envelope_digest(raw)
    assert known_run(tmp_path / "run", run) == b""
    remember_run(tmp_path / "run", raw)
    assert known_run(tmp_path / "run", run) == raw
    assert known_run(tmp_path / "run", Digest(bytes(32))) == b""
    (tmp_path / "run" / "run.manifest").write_bytes(raw[:-1])  # as from a failing disk
    assert known_run(tmp_path / "run", run) == b""


@pytest.mark.parametrize("name", [os.devnull, f"{os.devnull}/below", "n" * 300])
def test_a_home_that_can_be_no_folder_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"is not a folder|cannot be a folder") as caught:
        check_home_name(Path("/tmp") / name)
    assert "--home" in caught.value.remedy
    monkeypatch.setenv("P2PRL_HOME", f"/tmp/{name}" if name.startswith("n") else name)
    with pytest.raises(ConfigError) as caught:
        check_home_name(None)
    assert "P2PRL_HOME" in caught.value.remedy


def test_a_home_whose_name_is_no_text_is_refused_by_its_bytes(tmp_path: Path) -> None:
    home = tmp_path / os.fsdecode(b"h\xff")
    with pytest.raises(ConfigError, match="a byte that is no UTF-8"):
        check_home_name(home)
    home.mkdir()
    with pytest.raises(ConfigError, match="a byte that is no UTF-8"):
        check_home(home)
    assert check_home_name(tmp_path) == tmp_path
    assert check_home_name(tmp_path / "new" / "ünïcode") is not None
