"""`p2prl team create|rename|join|leave|show`: on one machine, between two, and what a node is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.config.owner_files import load_memberships, load_team_name
from p2prl.errors import ConfigError, IdentityError
from p2prl.net.storage.key_file import load_identity
from p2prl.protocol.identity import peer_id_of
from p2prl.protocol.membership_statements import TeamName, invite_text, parse_invite, parse_membership
from p2prl_lab.testing.sample_ledgers import identity
from tests.unit.cli.commands.test_key_owner import delegated, node_of, refusal
from tests.unit.cli.invocation import invoke, json_of


@pytest.fixture
def invite(tmp_path: Path) -> str:
    """The invite of a team that somebody else founded."""
    return str(invoke("team", "create", "Red Pandas", "--home", tmp_path / "founder").stdout.strip())


def test_an_invite_carries_the_signed_name_and_no_secret(tmp_path: Path, invite: str) -> None:
    founder = tmp_path / "founder"
    name = parse_invite(invite)
    assert (name.name, load_team_name(founder)) == ("Red Pandas", name)
    assert oct((founder / "team" / "key.json").stat().st_mode)[-3:] == "600"
    words = invoke("key", "backup", "--seat", "team", "--home", founder).stdout
    assert words.strip()
    shown = json_of("key", "show", "--home", founder)
    assert (shown["team"], shown["seats"]) == (peer_id_of(name.team), {})
    assert node_of(founder).memberships == (), "to found a team is not to join it"
    assert isinstance(refusal("team", "create", "Second", "--home", founder), IdentityError)


def test_a_newer_name_needs_the_teams_key(tmp_path: Path, invite: str) -> None:
    founder = tmp_path / "founder"
    renamed = parse_invite(json_of("team", "rename", "Blue  Pandas", "--home", founder)["invite"])
    before = parse_invite(invite)
    assert (renamed.name, renamed.team) == ("Blue Pandas", before.team)
    assert renamed.serial > before.serial
    assert isinstance(refusal("team", "rename", "Mine", "--home", tmp_path / "other"), IdentityError)


@pytest.mark.parametrize("name", ["", "x" * 25, "evil.com", "<b>", "a\u202eb"])
def test_a_name_that_will_not_do_makes_no_team(tmp_path: Path, name: str) -> None:
    assert isinstance(refusal("team", "create", name, "--home", tmp_path), ConfigError)
    assert not (tmp_path / "team").exists()


def test_a_machine_without_an_owner_joins_moves_and_leaves(tmp_path: Path, invite: str) -> None:
    home = tmp_path / "home"
    joined = json_of("team", "join", invite, "--home", home)["members"]
    key = load_identity(home / "seat-1" / "key.json")
    assert [(row["member"], row["name"]) for row in joined] == [(key.peer_id, "Red Pandas")]
    (membership,) = node_of(home).memberships
    assert membership == parse_membership(joined[0]["line"])
    other = invoke("team", "create", "Others", "--home", tmp_path / "b").stdout.strip()
    invoke("team", "join", other, "--home", home)
    (moved,) = node_of(home).memberships
    assert moved.team == parse_invite(other)
    assert moved.serial > membership.serial
    invoke("team", "leave", "--home", home)
    (left,) = node_of(home).memberships
    assert left.team is None
    assert left.serial > moved.serial
    assert "in no team" in invoke("team", "show", "--home", home).stdout
    assert isinstance(refusal("team", "leave", "--home", home), IdentityError)


def test_an_owners_line_goes_to_its_other_machines(tmp_path: Path, invite: str) -> None:
    desk, attic = tmp_path / "desk", tmp_path / "attic"
    owner = json_of("key", "owner", "--home", desk)["owner"]
    delegated(desk, attic)
    assert "another machine" in str(refusal("team", "join", invite, "--home", attic))
    line = invoke("team", "join", invite, "--home", desk).stdout.strip()
    assert isinstance(refusal("team", "join", line, "--home", tmp_path / "stranger"), IdentityError)
    shown = json_of("team", "join", line, "--home", attic)["members"]
    assert [row["member"] for row in shown] == [owner]
    assert node_of(attic).memberships == (parse_membership(line),)
    left = invoke("team", "leave", "--home", desk).stdout.strip()
    assert json_of("team", "join", left, "--home", attic)["members"][0]["team"] is None
    assert isinstance(refusal("team", "join", line, "--home", attic), IdentityError), "an older line does not come back"


def test_forged_and_damaged_lines_are_refused(tmp_path: Path, invite: str) -> None:
    name = parse_invite(invite)
    forged = invite_text(TeamName(name.team, "Others", name.serial, name.signature))
    for line in (forged, invite[:-3], "hello", ""):
        assert isinstance(refusal("team", "join", line, "--home", tmp_path / "home"), IdentityError)
    assert not (tmp_path / "home").exists()
    (tmp_path / "memberships").write_text("nonsense\n")
    with pytest.raises(IdentityError, match="damaged"):
        load_memberships(tmp_path)
    assert identity("x").public_key not in load_memberships(tmp_path / "nowhere")
