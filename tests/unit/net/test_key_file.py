"""The key file: round trip, ssh's rule on modes, atomic creation and the errors' remedies."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from p2prl.errors import IdentityError
from p2prl.net.storage.key_file import create_identity, load_identity, load_or_create_identity
from p2prl.protocol.identity import Identity

IDENTITY = Identity.generate(bytes(range(16)))


def test_round_trip_keeps_the_key_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key.json"
    create_identity(path, IDENTITY)
    assert load_identity(path).words == IDENTITY.words
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["key.json"]


def test_the_umask_cannot_open_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_identity(tmp_path / "key", IDENTITY)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_an_existing_key_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key"
    create_identity(path, IDENTITY)
    with pytest.raises(IdentityError, match="already") as caught:
        create_identity(path, Identity.generate(bytes(16)))
    assert caught.value.remedy
    assert load_identity(path).peer_id == IDENTITY.peer_id
    assert len(list(tmp_path.iterdir())) == 1


def test_load_or_create_makes_one_key_and_keeps_it(tmp_path: Path) -> None:
    first = load_or_create_identity(tmp_path / "key")
    assert load_or_create_identity(tmp_path / "key").peer_id == first.peer_id
    assert load_or_create_identity(tmp_path / "other").peer_id != first.peer_id


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o777])
def test_a_file_open_to_others_is_refused_with_the_chmod_command(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    create_identity(path, IDENTITY)
    path.chmod(mode)
    with pytest.raises(IdentityError, match=f"{mode:04o}") as caught:
        load_identity(path)
    assert caught.value.remedy == f"chmod 600 {path}"
    path.chmod(0o600)
    assert load_identity(path).peer_id == IDENTITY.peer_id


GOOD = {"format": "p2prl/key/1", "entropy": IDENTITY.entropy.hex(), "peer_id": IDENTITY.peer_id}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00garbage",
        b"[]",
        b"[" * 3000,
        b"{" + b" " * 5000 + b"}",
        json.dumps(GOOD | {"format": "p2prl/key/2"}).encode(),
        json.dumps(GOOD | {"entropy": "zz"}).encode(),
        json.dumps(GOOD | {"entropy": "00" * 15}).encode(),
        json.dumps(GOOD | {"entropy": 7}).encode(),
        json.dumps(GOOD | {"entropy": "00" * 16}).encode(),
        json.dumps({key: value for key, value in GOOD.items() if key != "peer_id"}).encode(),
    ],
)
def test_garbage_is_an_identity_error_with_a_remedy(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityError) as caught:
        load_identity(path)
    assert "words" in caught.value.remedy


def test_missing_and_irregular_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="no key file"):
        load_identity(tmp_path / "none")
    with pytest.raises(IdentityError, match=str(tmp_path)):
        load_identity(tmp_path)
    with pytest.raises(IdentityError, match="cannot write"):
        create_identity(Path("/proc/no/such/key"), IDENTITY)


def test_a_file_without_permission_gives_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root can read a file of any mode
    with pytest.raises(IdentityError, match="may not be read") as caught:
        load_identity(tmp_path / "key")
    assert "chown" in caught.value.remedy
