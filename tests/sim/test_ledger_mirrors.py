"""Mirrors of the ledger: a reader gets and verifies it when the learner is away, and is told when the learner forks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from p2prl.errors import IntegrityError
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_chain import entry_digest, page_of
from p2prl.protocol.ledger_messages import Countersignature
from p2prl.scoreboard.ledger.ledger_follower import LedgerFollower
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from p2prl.scoreboard.ledger.mirror import MirroringPort
from p2prl.scoreboard.ledger.signed_head import Witness
from p2prl.scoreboard.ledger_dump import verify_dump, verify_source, write_dump
from p2prl.scoreboard.ledger_recount import Recount
from p2prl.sim.machines import identity_of
from p2prl.sim.simulated_port import SimulatedPort
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl.swarm import signals
from p2prl.swarm.events import Event
from p2prl_lab.testing.protocol_swarm import Member, ProtocolSwarm
from p2prl_lab.testing.sample_ledgers import LedgerWriter, receipt

ANN, VALIDATOR, NEWCOMER = identity_of("ann"), identity_of("validator"), identity_of("newcomer")
DAY_S = 86_400.0


class LedgerSwarm(ProtocolSwarm):
    """A learner that serves a ledger, and peers with a mirror or a reader on top of their node."""

    def __init__(self, directory: Path) -> None:
        super().__init__(VirtualNetwork(4))
        self.directory = directory
        self.ports: dict[str, SimulatedPort] = {}
        self.history_for: Callable[[PeerId], LedgerWriter]
        self.learner = self.add("learner", Role.LEARNER)

    def writer(self, *, groups: int, copied: int = 0, of: LedgerWriter | None = None) -> LedgerWriter:
        """A history with receipts and verdicts of a validator that becomes known; it may begin as another does."""
        made = LedgerWriter(now=START - 10 * DAY_S)
        made.learner, made.run, made.manifest_raw = self.learner.identity, self.run, self.manifest
        for envelope in of.envelopes[:copied] if of else ():
            made.append(envelope)
        for number in range(groups):
            row = receipt(number + 1_000 * copied, ANN, tokens=100 + copied)
            made.receipts(0, row)
            made.verdict(VALIDATOR, row)
        return made

    def on_event(self, member: Member, event: Event) -> None:
        super().on_event(member, event)
        if member.name in self.ports:
            self.ports[member.name].on_event(event)
        elif isinstance(event, signals.LedgerWanted) and member is self.learner:
            entries = page_of(self.history_for(PeerId(event.peer)).entries[event.from_height :])
            answer = signals.SendLedger(event.peer, event.from_height, entries)
            self.network.node(member.peer).order(answer, self.network.now)
            self.network.wake(member.peer)

    def port(self, name: str, role: Role, *bootstrap: str) -> SimulatedPort:
        member = Member(name, identity_of(name), role)
        port = SimulatedPort(self.network, member.peer, (), lambda root: self.directory / root.hex())
        self.ports[name] = port
        self.add(name, role, bootstrap=bootstrap)
        return port

    def repeat(self, turn: Callable[[], None], period_s: float = 1.0) -> None:
        def take() -> None:
            turn()
            self.network.after(period_s, take)

        self.network.after(period_s, take)

    def mirror(self, name: str, role: Role, *bootstrap: str) -> MirroringPort:
        port = self.port(name, role, *bootstrap)
        mirror = MirroringPort(
            port,
            self.directory / name / "ledger.db",
            run=self.run,
            clock=self.network.clock(port.peer),
            signer=identity_of(name) if role is Role.VALIDATOR else None,
        )
        mirror.begin(1_000_000)
        self.repeat(lambda: self._poll(mirror, port.peer))
        return mirror

    def _poll(self, mirror: MirroringPort, peer: PeerId) -> None:
        if self.network.is_up(peer):
            mirror.poll(0.0)

    def serve(self, history: LedgerWriter) -> None:
        """The learner has this ledger and signs its head."""
        self.history_for = lambda peer: history
        node = self.network.node(self.learner.peer)
        node.order(signals.SetLedgerHeight(len(history.entries)), self.network.now)
        node.publish(history.signed_head(), self.network.now)
        self.network.wake(self.learner.peer)


class Reader:
    """What `p2prl ledger verify LINK` runs, on virtual time."""

    def __init__(self, swarm: LedgerSwarm, name: str, *bootstrap: str) -> None:
        self.port = swarm.port(name, Role.BOARD, *bootstrap)
        self.store = LedgerStore(swarm.directory / name / "ledger.db", run=swarm.run)
        self.follower = LedgerFollower(self.store, run=swarm.run)
        self.clock = swarm.network.clock(self.port.peer)
        swarm.repeat(self.turn)

    def turn(self) -> None:
        answers = [a for message in self.port.poll(0.0) for a in self.follower.receive(message, self.clock.now())]
        for message in [*answers, *self.follower.handle_timer(self.clock.now())]:
            self.port.send(message)

    def snapshot(self) -> Snapshot:
        return self.follower.snapshot()

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        return self.store.entries(from_height, limit)

    def witnesses(self) -> tuple[Witness, ...]:
        return self.follower.witnesses()

    def failure(self) -> None:
        return None

    def verify(self) -> Recount:
        return verify_source(self)


@pytest.mark.parametrize("survivor", ["seeder", "validator", "volunteer"])
def test_a_reader_verifies_the_ledger_from_any_mirror_when_the_learner_is_away(tmp_path: Path, survivor: str) -> None:
    swarm = LedgerSwarm(tmp_path)
    roles = {"seeder": Role.SEEDER, "validator": Role.VALIDATOR, "volunteer": Role.VOLUNTEER}
    for name, role in roles.items():
        swarm.mirror(name, role, "learner")
    history = swarm.writer(groups=40)
    swarm.serve(history)  # ten days old: nothing of it is too old to be shown
    swarm.network.run_for(120.0)
    for member in [swarm.learner, *(swarm.members[name] for name in roles if name != survivor)]:
        swarm.network.crash(member.peer)
    swarm.network.run_for(60.0)
    reader = Reader(swarm, "reader", survivor)
    swarm.network.run_for(60.0)
    result = reader.verify()
    assert result.is_whole
    assert (result.height, result.root) == (len(history.entries), history.head.hex())
    assert (result.countersigned.validators, result.countersigned.whole, result.countersigned.others) == (1, 1, 0)
    assert result.countersigned.height == result.height
    write_dump(reader, tmp_path / "dump")
    assert verify_dump(tmp_path / "dump", run=swarm.run) == result


def test_a_mirror_shows_what_it_has_after_a_restart_without_the_learner(tmp_path: Path) -> None:
    swarm = LedgerSwarm(tmp_path)
    swarm.mirror("validator", Role.VALIDATOR, "learner")
    swarm.mirror("seeder", Role.SEEDER, "learner")
    history = swarm.writer(groups=20)
    swarm.serve(history)
    swarm.network.run_for(120.0)
    seeder, validator = swarm.members["seeder"].peer, swarm.members["validator"].peer
    swarm.network.crash(seeder)
    swarm.network.run_for(5.0)
    swarm.network.restart(seeder)
    swarm.network.connect(seeder, swarm.learner.peer)
    swarm.network.run_for(10.0)  # its new node has got the run manifest again, and knows no head of its own
    swarm.network.crash(swarm.learner.peer)
    swarm.network.crash(validator)
    reader = Reader(swarm, "reader", "seeder")
    swarm.network.run_for(60.0)
    result = reader.verify()
    assert result.is_whole
    assert (result.height, result.countersigned.validators) == (len(history.entries), 1)


def test_keys_without_standing_are_told_apart(tmp_path: Path) -> None:
    swarm = LedgerSwarm(tmp_path)
    history = swarm.writer(groups=20)
    swarm.mirror("newcomer", Role.VALIDATOR, "learner")
    swarm.serve(history)
    reader = Reader(swarm, "reader", "newcomer", "learner")
    swarm.network.run_for(120.0)
    result = reader.verify()
    assert (result.countersigned.validators, result.countersigned.others) == (0, 1)
    assert result.is_whole


def test_a_forking_learner_is_found_by_what_others_countersigned(tmp_path: Path) -> None:
    swarm = LedgerSwarm(tmp_path)
    shown = swarm.writer(groups=12)
    other = swarm.writer(groups=8, copied=15, of=shown)
    swarm.serve(shown)
    swarm.mirror("seeder", Role.SEEDER, "learner")
    swarm.network.run_for(60.0)
    reader = Reader(swarm, "reader", "seeder")
    swarm.network.run_for(60.0)
    assert reader.verify().is_whole, "one history at a time is no fork"
    head = other.signed_head(height=18, head=_digest_at(other, 18))
    witness = seal(VALIDATOR, Countersignature(head), run=swarm.run, now=swarm.network.now)
    carrier = swarm.add("validator", Role.VALIDATOR, bootstrap=("seeder",))
    swarm.network.run_for(20.0)
    swarm.network.node(carrier.peer).publish(witness, swarm.network.now)
    swarm.network.wake(carrier.peer)
    swarm.network.run_for(30.0)
    with pytest.raises(
        IntegrityError, match=r"a history of 18 ledger entries that contradicts one of 36 .*entry 17 or"
    ):
        reader.verify()
    late = Reader(swarm, "late", "seeder")
    swarm.network.crash(carrier.peer)
    swarm.network.run_for(60.0)
    with pytest.raises(IntegrityError, match="entry 17 or before it"):
        late.verify()


def test_two_heads_of_one_height_reach_a_late_reader_and_are_a_fork(tmp_path: Path) -> None:
    swarm = LedgerSwarm(tmp_path)
    shown = swarm.writer(groups=6)
    swarm.serve(shown)
    swarm.mirror("seeder", Role.SEEDER, "learner")
    swarm.network.run_for(60.0)
    swarm.network.node(swarm.learner.peer).publish(shown.signed_head(head=bytes(32)), swarm.network.now)
    swarm.network.wake(swarm.learner.peer)
    swarm.network.run_for(20.0)
    swarm.network.crash(swarm.learner.peer)
    late = Reader(swarm, "late", "seeder")
    swarm.network.run_for(60.0)
    with pytest.raises(IntegrityError, match="two different histories of 18 ledger entries"):
        late.verify()


def _digest_at(history: LedgerWriter, height: int) -> bytes:
    return entry_digest(history.entries[height - 1])
