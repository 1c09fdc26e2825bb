"""Owners' statements in a swarm: a machine sends its own to the learner, also over carriers, and floods are bounded."""

from __future__ import annotations

from dataclasses import replace

from p2prl.protocol import frames
from p2prl.protocol.delegation import DAY_MS, Delegation, sign_delegation, sign_revocation
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_chain import OWNERS_STATEMENTS
from p2prl.protocol.link_messages import Push
from p2prl.protocol.membership_statements import OwnersStatement, sign_membership, sign_team_name
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import PeerBanned
from p2prl.swarm.gossip.own_statements import PERIOD_S
from p2prl.swarm.gossip.statement_quota import (
    MAX_PER_LINK,
    MAX_PER_MACHINE,
    MAX_PER_OWNER,
    WINDOW_S,
    StatementQuota,
)
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.testing.protocol_swarm import Member, ProtocolSwarm
from tests.sim.node_swarm import events_of, hello_of, swarm

OWNER = identity_of("owner")
TEAM_NAME = sign_team_name(identity_of("team"), "Red Pandas", serial=1)
START_MS = int(START * 1000)


def delegation(machine: str, owner: str = "owner") -> Delegation:
    return sign_delegation(
        identity_of(owner), identity_of(machine).public_key, serial=START_MS, expires_ms=START_MS + DAY_MS
    )


def with_statements(name: str) -> NodeConfig:
    revocation = sign_revocation(OWNER, identity_of("old").public_key, serial=START_MS, from_ms=START_MS)
    membership = sign_membership(OWNER, TEAM_NAME, serial=START_MS)
    return NodeConfig(
        role=Role.VOLUNTEER, delegations=(delegation(name),), revocations=(revocation,), memberships=(membership,)
    )


def statements_at(learner: Member) -> list[Kind]:
    return [e.opened.kind for e in learner.arrived() if e.opened.kind in OWNERS_STATEMENTS]


def test_a_machine_sends_its_statements_when_it_joins_and_every_ten_minutes() -> None:
    made = swarm()
    made.add("attic", bootstrap=("learner",), config=lambda _: with_statements("attic"))
    made.network.run_for(30)
    learner = made.members["learner"]
    first = statements_at(learner)
    assert set(OWNERS_STATEMENTS) == set(first)
    assert len(first) <= 6, "on joining, and with the link to the learner"
    made.network.run_for(PERIOD_S + 30)
    assert 3 <= len(statements_at(learner)) - len(first) <= 6
    authors = {e.opened.author for e in learner.arrived() if e.opened.kind is Kind.DELEGATION}
    assert authors == {identity_of("attic").public_key}


def test_a_stranger_cannot_claim_a_machine_and_is_punished_for_trying() -> None:
    made = swarm()
    learner = made.members["learner"]
    made.network.run_for(5)
    eve = identity_of("eve")
    _push(made, "eve", [seal(eve, delegation("attic", "eve"), run=made.run, now=START + index) for index in range(3)])
    assert statements_at(learner) == []
    assert [event.peer for event in events_of(learner, PeerBanned) if isinstance(event, PeerBanned)] == [eve.peer_id]


def test_a_flood_of_free_keys_is_bounded_and_bans_nobody() -> None:
    made = swarm()
    learner = made.members["learner"]
    made.network.run_for(5)
    flood = []
    for index in range(2 * MAX_PER_LINK):
        machine = f"free {index}"
        body = delegation(machine, f"owner {index}")
        flood.append(seal(identity_of(machine), body, run=made.run, now=made.network.now))
    _push(made, "eve", flood)
    assert len(statements_at(learner)) == MAX_PER_LINK
    assert not events_of(learner, PeerBanned)
    made.add("attic", bootstrap=("learner",), config=lambda _: with_statements("attic"))
    made.network.run_for(30)
    assert len(statements_at(learner)) > MAX_PER_LINK, "another link has its own share"


def _push(made: ProtocolSwarm, name: str, envelopes: list[bytes]) -> None:
    """A peer pushes envelopes to the learner."""
    peer, learner = identity_of(name).peer_id, made.members["learner"].peer
    made.network.inject(peer, learner, hello_of(made.run, now=made.network.now))
    for raw in envelopes:
        made.network.inject(peer, learner, frames.pack(Push(raw)))
    made.network.run_for(1)


def test_the_quota_counts_links_owners_and_machines_in_each_window() -> None:
    peers = [identity_of(f"link {index}").peer_id for index in range(200)]
    quota = StatementQuota()
    attic, cellar = (sent(name, delegation(name)) for name in ("attic", "cellar"))
    found = [quota.allows(attic, peer, 0.0, place="here") for peer in peers[:6]]
    assert found == [True] * MAX_PER_MACHINE + [False] * 2
    assert quota.allows(cellar, peers[0], 0.0, place="here")
    assert not quota.allows(attic, peers[0], WINDOW_S - 0.1, place="here")
    assert quota.allows(attic, peers[0], WINDOW_S, place="here")


def test_the_quota_counts_a_membership_for_its_sender_and_not_for_its_member() -> None:
    quota, links = StatementQuota(), [identity_of(f"link {index}").peer_id for index in range(20)]
    stolen = sign_membership(OWNER, TEAM_NAME, serial=1)
    eve = sent("eve", stolen)
    found = [quota.allows(eve, links[0], 0.0, place="here") for _ in range(MAX_PER_MACHINE + 1)]
    assert found == [True] * MAX_PER_MACHINE + [False]
    machines = [replace(eve, author=index.to_bytes(32, "big")) for index in range(MAX_PER_OWNER)]
    assert all(
        quota.allows(each, links[1 + index // MAX_PER_LINK], 0.0, place="here") for index, each in enumerate(machines)
    )
    for statement in (delegation("attic"), stolen):
        assert quota.allows(sent("attic", statement), links[-1], 0.0, place="here"), "the member keeps its own places"


def sent(machine: str, statement: OwnersStatement) -> Opened:
    return open_envelope(seal(identity_of(machine), statement, run=bytes(32), now=START), now=None)
