"""`p2prl key owner|delegate|revoke`: three steps between two machines, one on the same; what a node is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from p2prl import errors
from p2prl.config import owner_files
from p2prl.config.network_options import peer_network
from p2prl.config.owner_files import load_delegation, load_machines, load_revocations
from p2prl.config.worker_folder import claim_worker_folder
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.protocol.ownership import Ownership
from p2prl.swarm.node_config import NodeConfig
from tests.unit.cli.invocation import invoke, json_of

LINK = JoinLink("unit", Digest(bytes(32)), ())


def refusal(*arguments: object) -> errors.P2PRLError:
    error = invoke(*arguments).exception
    assert isinstance(error, errors.P2PRLError), error
    assert error.remedy
    return error


def delegated(desk: Path, attic: Path, *options: str) -> dict[str, Any]:
    """Delegate the key of one home to the owner of another, carrying the printed lines by hand."""
    peer_id = invoke("key", "delegate", "--home", attic).stdout.strip()
    line = invoke("key", "delegate", peer_id, "--home", desk, *options).stdout.strip()
    return json_of("key", "delegate", line, "--home", attic)


def node_of(home: Path) -> NodeConfig:
    """Settings of the node of a worker that starts in a home."""
    worker = claim_worker_folder(home)
    try:
        return peer_network(LINK, worker, Role.VOLUNTEER, ()).node
    finally:
        worker.release()


@pytest.mark.parametrize("command", ["owner", "delegate"])
def test_a_home_that_a_key_makes_is_closed_to_other_users(tmp_path: Path, command: str) -> None:
    json_of("key", command, "--home", tmp_path / "home")
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_by_default_a_machine_has_no_owner_but_itself(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    assert (node.delegations, node.revocations) == ((), ())
    shown = json_of("key", "show", "--home", tmp_path)
    assert (shown["owners"], shown["owner"], shown["delegates"]) == ({"seat-1": None}, None, [])


def test_an_owners_key_is_made_once_and_survives_on_paper(tmp_path: Path) -> None:
    made = json_of("key", "owner", "--home", tmp_path / "a")
    assert made["created"]
    again = json_of("key", "owner", "--home", tmp_path / "a")
    assert (again["owner"], again["created"]) == (made["owner"], False)
    words = invoke("key", "backup", "--home", tmp_path / "a", "--seat", "owner").stdout
    assert invoke("key", "restore", "--home", tmp_path / "b", "--seat", "owner", stdin=words).exit_code == 0
    assert json_of("key", "owner", "--home", tmp_path / "b")["owner"] == made["owner"]
    assert oct((tmp_path / "b" / "owner" / "key.json").stat().st_mode)[-3:] == "600"


def test_three_steps_between_two_machines(tmp_path: Path) -> None:
    desk, attic = tmp_path / "desk", tmp_path / "attic"
    owner = json_of("key", "owner", "--home", desk)["owner"]
    installed = delegated(desk, attic, "--name", "attic")
    assert (installed["step"], installed["owner"], installed["seat"]) == ("installed", owner, "seat-1")
    (delegation,) = node_of(attic).delegations
    assert delegation.owner == public_key_of(PeerId(owner))
    delegation.check_sent_by(public_key_of(PeerId(installed["machine"])))
    assert json_of("key", "show", "--home", attic)["owners"] == {"seat-1": owner}
    (machine,) = json_of("key", "show", "--home", desk)["delegates"]
    assert (machine["peer_id"], machine["name"]) == (installed["machine"], "attic")
    assert "attic" not in (attic / "seat-1" / "delegation").read_text()
    assert "attic" in invoke("key", "show", "--home", desk).stdout


def test_one_step_where_both_keys_are(tmp_path: Path) -> None:
    owner = json_of("key", "owner", "--home", tmp_path)["owner"]
    for seat in ("seat-1", "validator-1"):
        assert json_of("key", "delegate", "--home", tmp_path, "--seat", seat)["step"] == "installed"
    assert json_of("key", "show", "--home", tmp_path)["owners"] == {"seat-1": owner, "validator-1": owner}
    (delegation,) = node_of(tmp_path).delegations
    assert delegation.expires_ms - delegation.serial == pytest.approx(730 * 86_400_000, abs=1000)


def test_a_revoked_machine_and_its_renewal(tmp_path: Path) -> None:
    desk, attic = tmp_path / "desk", tmp_path / "attic"
    json_of("key", "owner", "--home", desk)
    machine = public_key_of(PeerId(delegated(desk, attic, "--name", "attic")["machine"]))
    first = load_delegation(attic / "seat-1", machine)
    assert first is not None
    line = invoke("key", "revoke", "attic", "--since", "2026-11-20T08:30Z", "--home", desk).stdout.strip()
    (revocation,) = node_of(desk).revocations
    assert (revocation.delegate, revocation.from_ms) == (machine, 1_795_163_400_000)
    assert json_of("key", "show", "--home", desk)["delegates"][0]["revoked_from_ms"] == revocation.from_ms
    for _ in range(2):  # passed on from a machine that works; a repetition changes nothing
        assert invoke("key", "revoke", line, "--home", attic).exit_code == 0
    assert load_revocations(attic) == (revocation,)
    delegated(desk, attic)
    renewed = load_delegation(attic / "seat-1", machine)
    assert renewed is not None
    table = Ownership()
    found = [table.delegate(first), table.revoke(revocation), table.delegate(renewed)]
    assert found == [None, None, None]
    assert table.owner_at(machine, revocation.from_ms) == first.owner, "the renewal holds again"
    assert load_machines(desk)[PeerId(json_of("key", "show", "--home", attic)["seats"]["seat-1"])].name == "attic"


def test_a_machine_changes_its_owner_only_when_told_twice(tmp_path: Path) -> None:
    desk, other, attic = tmp_path / "desk", tmp_path / "other", tmp_path / "attic"
    for home in (desk, other):
        json_of("key", "owner", "--home", home)
    peer_id = delegated(desk, attic)["machine"]
    line = json_of("key", "delegate", peer_id, "--home", other)["line"]
    assert "works for" in str(refusal("key", "delegate", line, "--home", attic))
    assert invoke("key", "delegate", line, "--replace", "--home", attic).exit_code == 0
    assert node_of(attic).delegations[0].owner == public_key_of(
        PeerId(json_of("key", "owner", "--home", other)["owner"])
    )


def test_refusals_have_a_remedy_and_the_exit_code_of_keys(tmp_path: Path) -> None:
    desk, attic = tmp_path / "desk", tmp_path / "attic"
    json_of("key", "owner", "--home", desk)
    peer_id = json_of("key", "delegate", "--home", attic)["machine"]
    line = json_of("key", "delegate", peer_id, "--home", desk)["line"]
    wrong: list[tuple[object, ...]] = [
        ("key", "delegate", peer_id, "--home", attic),  # no owner's key there
        ("key", "delegate", line, "--home", tmp_path / "third"),  # another machine's
        ("key", "delegate", line[:-4], "--home", attic),
        ("key", "delegate", "12D3Koo", "--home", desk),
        ("key", "revoke", "nobody", "--home", desk),
        ("key", "revoke", peer_id, "--home", attic),
    ]
    for arguments in wrong:
        assert refusal(*arguments).exit_code == 6, arguments
    assert refusal("key", "revoke", peer_id, "--since", "yesterday", "--home", desk).exit_code == 3


def test_a_delegation_of_a_replaced_key_is_ignored_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    json_of("key", "owner", "--home", tmp_path)
    json_of("key", "delegate", "--home", tmp_path)
    (tmp_path / "seat-1" / "key.json").rename(tmp_path / "old-key.json")
    assert node_of(tmp_path).delegations == ()
    (tmp_path / "seat-1" / "delegation").write_text("p2prl-delegation:AAAA")
    with pytest.raises(errors.IdentityError, match="damaged"):
        node_of(tmp_path)


def test_revocations_kept_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_files, "MOST_REVOCATIONS", 2)
    json_of("key", "owner", "--home", tmp_path)
    for seat in ("1", "2", "3"):
        peer_id = json_of("key", "delegate", "--home", tmp_path, "--seat", seat)["machine"]
        json_of("key", "revoke", peer_id, "--home", tmp_path)
    kept = [revocation.delegate for revocation in load_revocations(tmp_path)]
    seats = json_of("key", "show", "--home", tmp_path)["seats"]
    assert kept == [public_key_of(PeerId(seats[seat])) for seat in ("seat-2", "seat-3")]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_two_workers_of_one_machine_work_for_one_owner(tmp_path: Path) -> None:
    """A card each, as docs/machines.md has it."""
    owner = json_of("key", "owner", "--home", tmp_path)["owner"]
    first, second = claim_worker_folder(tmp_path), claim_worker_folder(tmp_path)
    machines = [worker.identity.peer_id for worker in (first, second)]
    for seat in ("seat-1", "seat-2"):
        json_of("key", "delegate", "--seat", seat, "--home", tmp_path)
    nodes = [peer_network(LINK, worker, Role.VOLUNTEER, ()).node for worker in (first, second)]
    first.release()
    second.release()
    assert machines[0] != machines[1]
    assert json_of("key", "show", "--home", tmp_path)["owners"] == {"seat-1": owner, "seat-2": owner}
    assert [len(node.delegations) for node in nodes] == [1, 1]
