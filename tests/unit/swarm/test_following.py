"""Queries of a standby learner: the permit is checked before any work, answers are rationed and only taken if asked."""

from __future__ import annotations

import random

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import frames, wire_version
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.follow_permit import MAX_PERMIT_LIFE_S, check_permit, sign_permit
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import FollowPiece, FollowQuery, Hello
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals
from p2prl.swarm.events import Event, Send
from p2prl.swarm.following import (
    FOLLOW_PIECE_BYTES,
    FOLLOW_RATE,
    FOLLOW_SHARE,
    MOST_ASKED,
    AskedPieces,
    FollowGate,
)
from p2prl.swarm.message_limits import MessageLimits
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs

LEARNER, FOLLOWER, STRANGER = map(identity_of, ("learner", "follower", "stranger"))
RUN = Digest(bytes(range(32)))
NOW = 1_800_000_000.0


def permit(follower: bytes = FOLLOWER.public_key, *, run: Digest = RUN, lasts_s: float = 3_600.0) -> bytes:
    return sign_permit(LEARNER, run=run, follower=follower, expires_ms=int((NOW + lasts_s) * 1000))


def gate(upload_bytes_s: float = 0.0) -> FollowGate:
    return FollowGate(run=RUN, learner=LEARNER.public_key, upload_bytes_s=upload_bytes_s, entry=MessageLimits())


def query(shown: bytes) -> FollowQuery:
    return FollowQuery(shown, 0, 1, 0, 0)


@pytest.mark.parametrize(
    "shown",
    [
        b"",
        bytes(72),
        permit()[:-1],
        permit() + b"x",
        permit(STRANGER.public_key),
        permit(run=Digest(bytes(32))),
        permit(lasts_s=-1.0),
        permit(lasts_s=MAX_PERMIT_LIFE_S + 60.0),
        sign_permit(FOLLOWER, run=RUN, follower=FOLLOWER.public_key, expires_ms=int(NOW * 1000) + 1000),
    ],
    ids=["empty", "zeros", "short", "long", "of another peer", "of another run", "ended", "too long", "own signature"],
)
def test_without_the_owners_permit_nobody_follows(shown: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        gate().admits(query(shown), FOLLOWER.peer_id, "10.0.0.0/24", NOW)


def test_a_permit_is_of_no_use_to_another_peer() -> None:
    both = gate()
    assert both.admits(query(permit()), FOLLOWER.peer_id, "10.0.0.0/24", NOW)
    with pytest.raises(RemoteProtocolError):
        both.admits(query(permit()), STRANGER.peer_id, "10.0.0.0/24", NOW)


def test_a_permit_that_was_checked_ends_all_the_same() -> None:
    one, shown = gate(), permit(lasts_s=100.0)
    assert one.admits(query(shown), FOLLOWER.peer_id, "10.0.0.0/24", NOW)
    with pytest.raises(RemoteProtocolError):
        one.admits(query(shown), FOLLOWER.peer_id, "10.0.0.0/24", NOW + 200.0)


def test_a_flood_of_forged_permits_costs_few_signatures() -> None:
    one, refused, ignored = gate(), 0, 0
    for number in range(20_000):
        try:
            assert not one.admits(query(number.to_bytes(72, "little")), STRANGER.peer_id, "10.0.0.0/24", NOW)
            ignored += 1
        except RemoteProtocolError:
            refused += 1
    assert refused <= 256, "the burst of the node's queries"
    assert refused + ignored == 20_000


@pytest.mark.parametrize("upload_bytes_s", [0.0, 1e6])
def test_a_follower_draws_no_more_than_its_rate(upload_bytes_s: float) -> None:
    one, shown, answered, seconds = gate(upload_bytes_s), permit(), 0, 50
    for turn in range(seconds * 200):
        answered += one.admits(query(shown), FOLLOWER.peer_id, "10.0.0.0/24", NOW + turn / 200)
    per_s = FOLLOW_SHARE * upload_bytes_s / FOLLOW_PIECE_BYTES if upload_bytes_s else FOLLOW_RATE.per_s
    assert answered <= FOLLOW_RATE.burst + per_s * seconds + 1
    assert answered >= per_s * seconds - 1


def test_a_follower_takes_what_it_asked_for_once() -> None:
    asked = AskedPieces()
    assert not asked.takes(FollowPiece(1, 0, 0, b"x")), "nothing was asked"
    assert not asked.takes(FollowPiece(1, -1, -1, b"head")), "nor a head"
    asked.ask(FollowQuery(b"", 0, 1, 0, 0))
    assert not asked.takes(FollowPiece(1, 0, 1, b"x"))
    assert not asked.takes(FollowPiece(1, 0, 0, bytes(FOLLOW_PIECE_BYTES + 1)))
    assert asked.takes(FollowPiece(1, 0, 0, bytes(FOLLOW_PIECE_BYTES)))
    assert not asked.takes(FollowPiece(1, 0, 0, b"x"))


def test_a_follower_forgets_its_oldest_questions() -> None:
    asked = AskedPieces()
    for piece in range(MOST_ASKED + 1):
        asked.ask(FollowQuery(b"", 0, 1, 0, piece))
    assert not asked.takes(FollowPiece(1, 0, 0, b"x"))
    assert asked.takes(FollowPiece(1, 0, MOST_ASKED, b"x"))


def test_a_permit_signs_the_run_the_follower_and_the_end() -> None:
    check_permit(permit(), learner=LEARNER.public_key, run=RUN, follower=FOLLOWER.public_key, now=NOW)
    for position in range(72):
        changed = bytearray(permit())
        changed[position] ^= 1
        with pytest.raises(RemoteProtocolError):
            check_permit(bytes(changed), learner=LEARNER.public_key, run=RUN, follower=FOLLOWER.public_key, now=NOW)


MANIFEST = seal(LEARNER, run_manifest_of(LEARNER), run=bytes(32), now=NOW)
REAL_RUN = envelope_digest(MANIFEST)


def node(own: Identity, role: Role, *linked: tuple[PeerId, Role]) -> Node:
    """A node of the run that is linked with these peers."""
    config = NodeConfig(role=role, fetch_policies=role is Role.LEARNER)
    made = Node(own, REAL_RUN, MemoryBlobs(), random.Random(1), config, NOW)
    made.begin(MANIFEST)
    for peer, other in linked:
        hello = Hello(wire_version.WIRE_VERSION, REAL_RUN, int(other), int(NOW * 1000), -1, 0)
        made.receive(frames.pack(hello), peer, NOW)
    return made


def reports(made: Node) -> list[Event]:
    """What it has reported of following."""
    events = iter(made.next_event, None)
    return [event for event in events if isinstance(event, signals.FollowWanted | signals.FollowArrived)]


def test_a_learner_reports_questions_of_its_owners_standby_alone() -> None:
    learner = node(LEARNER, Role.LEARNER, (FOLLOWER.peer_id, Role.BOARD), (STRANGER.peer_id, Role.BOARD))
    shown = permit(run=REAL_RUN)
    for _ in range(200):
        learner.receive(frames.pack(query(shown)), STRANGER.peer_id, NOW)
    assert reports(learner) == []
    assert learner.is_banned(STRANGER.peer_id, NOW), "a stolen permit is a fault"
    learner.receive(frames.pack(query(shown)), FOLLOWER.peer_id, NOW)
    assert reports(learner) == [signals.FollowWanted(FOLLOWER.peer_id, 0, 1, 0, 0)]


def test_nobody_but_a_learner_answers() -> None:
    seeder = node(STRANGER, Role.SEEDER, (FOLLOWER.peer_id, Role.BOARD))
    seeder.receive(frames.pack(query(permit(run=REAL_RUN))), FOLLOWER.peer_id, NOW)
    assert reports(seeder) == []


def test_a_standby_asks_the_learner_and_believes_nobody_else() -> None:
    standby = node(FOLLOWER, Role.BOARD, (LEARNER.peer_id, Role.LEARNER), (STRANGER.peer_id, Role.LEARNER))
    standby.commands(NOW)
    standby.order(signals.AskFollow(permit(run=REAL_RUN), 0, 1, 0, 0), NOW)
    asked = [
        (command.peer, message)
        for command in standby.commands(NOW)
        if isinstance(command, Send)
        for message in frames.unpack(command.frame)
        if isinstance(message, FollowQuery)
    ]
    assert asked == [(LEARNER.peer_id, query(permit(run=REAL_RUN)))]
    answer = frames.pack(FollowPiece(1, 0, 0, b"bytes"))
    standby.receive(answer, STRANGER.peer_id, NOW)
    assert reports(standby) == []
    for _ in range(2):
        standby.receive(answer, LEARNER.peer_id, NOW)
    assert reports(standby) == [signals.FollowArrived(1, 0, 0, b"bytes")]
