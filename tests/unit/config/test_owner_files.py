"""Files of owners and teams: what is saved is loaded, by its owner alone, bounded, and a damaged one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.config.owner_files import (
    MOST_REVOCATIONS,
    Machine,
    add_revocation,
    key_file,
    load_delegation,
    load_machines,
    load_memberships,
    load_revocations,
    load_team_name,
    owner_key_file,
    read_file,
    save_delegation,
    save_machine,
    save_memberships,
    save_team_name,
    team_key_file,
)
from p2prl.errors import ConfigError, IdentityError
from p2prl.protocol.delegation import DAY_MS, Revocation, sign_delegation, sign_revocation
from p2prl.protocol.identity import Identity
from p2prl.protocol.membership_statements import sign_membership, sign_team_name

OWNER, MACHINE, OTHER, TEAM = (Identity(bytes([n]) * 16) for n in range(1, 5))
NOW = 1_800_000_000_000


def revocation(number: int) -> Revocation:
    return sign_revocation(OWNER, MACHINE.public_key, serial=NOW + number, from_ms=NOW)


def test_a_home_without_files_has_no_owner_machines_or_team(tmp_path: Path) -> None:
    assert load_delegation(tmp_path, MACHINE.public_key) is None
    assert load_revocations(tmp_path) == ()
    assert load_machines(tmp_path) == {}
    assert load_team_name(tmp_path) is None
    assert load_memberships(tmp_path) == {}


def test_a_delegation_is_that_of_its_key_alone(tmp_path: Path) -> None:
    delegation = sign_delegation(OWNER, MACHINE.public_key, serial=NOW, expires_ms=NOW + DAY_MS)
    save_delegation(tmp_path, delegation)
    assert load_delegation(tmp_path, MACHINE.public_key) == delegation
    assert load_delegation(tmp_path, OTHER.public_key) is None, "of a key that was replaced"
    path = tmp_path / "delegation"
    assert path.stat().st_mode & 0o777 == 0o600
    add_revocation(tmp_path, revocation(0))
    path.write_text((tmp_path / "revocations").read_text())
    assert load_delegation(tmp_path, MACHINE.public_key) is None, "another kind of statement"


def test_the_newest_revocations_are_passed_on_each_once(tmp_path: Path) -> None:
    for number in range(MOST_REVOCATIONS):
        add_revocation(tmp_path, revocation(number))
    assert load_revocations(tmp_path) == tuple(revocation(number) for number in range(64))
    add_revocation(tmp_path, revocation(0))
    assert load_revocations(tmp_path) == (*(revocation(number) for number in range(1, 64)), revocation(0))
    add_revocation(tmp_path, revocation(64))
    assert len(load_revocations(tmp_path)) == 64
    assert revocation(1) not in load_revocations(tmp_path), "the oldest makes room"
    text = (tmp_path / "revocations").read_text()
    (tmp_path / "revocations").write_text("\n" + text + "\n" + text)
    assert len(load_revocations(tmp_path)) == 64, "also of a file that somebody else has written to"


def test_an_entry_of_a_machine_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    attic = Machine(peer_id="a", name="attic", serial=1, expires_ms=5)
    cellar = Machine(peer_id="b", name="", serial=2, expires_ms=6, revoked_from_ms=3)
    again = Machine(peer_id="a", name="attic", serial=9, expires_ms=7)
    for machine in (attic, cellar, again):
        save_machine(tmp_path, machine)
    assert load_machines(tmp_path) == {"a": again, "b": cellar}


def test_a_team_and_its_members(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    name = sign_team_name(TEAM, "Night owls", serial=NOW)
    save_team_name(tmp_path, name)
    assert load_team_name(tmp_path) == name
    joined = [sign_membership(member, name, serial=NOW) for member in (OWNER, OTHER)]
    left = sign_membership(OTHER, None, serial=NOW + 1)
    save_memberships(tmp_path, joined)
    save_memberships(tmp_path, [left])
    assert load_memberships(tmp_path) == {OWNER.public_key: joined[0], OTHER.public_key: left}


@pytest.mark.parametrize("name", ["revocations", "memberships", "owner/delegates.json", "team/invite"])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    load = {
        "revocations": load_revocations,
        "memberships": load_memberships,
        "owner/delegates.json": load_machines,
        "team/invite": load_team_name,
    }[name]
    for data in (b"\xff\xfe", b"something else\n", b'{"format": "p2prl/delegates/2", "machines": []}'):
        path.write_bytes(data)
        with pytest.raises(IdentityError, match="is damaged") as caught:
            load(tmp_path)
        assert str(path) in str(caught.value)
        assert caught.value.remedy.startswith(f"Delete {path} and run p2prl ")


def test_no_more_than_a_megabyte_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 2_000_000)
    text = read_file(path, remedy="p2prl key delegate")
    assert text is not None
    assert 1_000_000 <= len(text) <= 1_100_000


@pytest.mark.parametrize(
    ("seat", "folder"),
    [("1", "seat-1"), ("99", "seat-99"), ("seat-2", "seat-2"), ("validator-1", "validator-1"), ("owner", "owner")],
)
def test_worker_folders(tmp_path: Path, seat: str, folder: str) -> None:
    assert key_file(tmp_path, seat) == tmp_path / folder / "key.json"
    assert owner_key_file(tmp_path) == key_file(tmp_path, "owner")
    assert team_key_file(tmp_path) == key_file(tmp_path, "team")


@pytest.mark.parametrize("seat", ["", "0", "100", "seat-0", "seat-100", "../seat-1", "seat-1/..", "other-1", "SEAT-1"])
def test_what_is_no_worker_folder_is_refused(tmp_path: Path, seat: str) -> None:
    with pytest.raises(ConfigError, match="is not a worker folder"):
        key_file(tmp_path, seat)
