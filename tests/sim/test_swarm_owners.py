"""Owners' statements in a swarm: a machine sends its own to the learner, also over carriers, and floods are bounded."""

from __future__ import annotations

from p2prl.protocol import frames
from p2prl.protocol.delegation import DAY_MS, Delegation, sign_delegation, sign_revocation
from p2prl.protocol.envelope import seal
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.link_messages import Push
from p2prl.sim.hosts import identity_of
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import PeerBanned
from p2prl.swarm.gossip.own_statements import PERIOD_S
from p2prl.swarm.gossip.statement_quota import MAX_PER_LINK, WINDOW_S, StatementQuota
from p2prl.swarm.node_config import NodeConfig
from p2prl.testing.protocol_swarm import Member, ProtocolSwarm
from tests.sim.node_swarm import events_of, hello_of, swarm

OWNER = identity_of("owner")
START_MS = int(START * 1000)


def delegation(machine: str, owner: str = "owner") -> Delegation:
    return sign_delegation(
        identity_of(owner), identity_of(machine).public_key, serial=START_MS, expires_ms=START_MS + DAY_MS
    )


def with_statements(name: str) -> NodeConfig:
    revocation = sign_revocation(OWNER, identity_of("old").public_key, serial=START_MS, from_ms=START_MS)
    return NodeConfig(role=Role.VOLUNTEER, delegations=(delegation(name),), revocations=(revocation,))


def statements_at(learner: Member) -> list[Kind]:
    return [e.opened.kind for e in learner.arrived() if e.opened.kind in (Kind.DELEGATION, Kind.REVOCATION)]


def test_a_machine_sends_its_statements_when_it_joins_and_every_ten_minutes() -> None:
    made = swarm()
    made.add("attic", bootstrap=("learner",), config=lambda _: with_statements("attic"))
    made.network.run_for(30)
    learner = made.members["learner"]
    first = statements_at(learner)
    assert {Kind.DELEGATION, Kind.REVOCATION} == set(first)
    assert len(first) <= 4, "on joining, and with the link to the learner"
    made.network.run_for(PERIOD_S + 30)
    assert 2 <= len(statements_at(learner)) - len(first) <= 4
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
    found = [quota.allows(delegation("attic"), peer, 0.0) for peer in peers[:6]]
    assert found == [True] * 4 + [False] * 2
    assert quota.allows(delegation("cellar"), peers[0], 0.0)
    assert not quota.allows(delegation("attic"), peers[0], WINDOW_S - 0.1)
    assert quota.allows(delegation("attic"), peers[0], WINDOW_S)
