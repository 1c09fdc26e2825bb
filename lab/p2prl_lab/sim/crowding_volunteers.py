"""Volunteers that do no work: they starve the learner's uplink with questions, or flood it with owners' statements."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.passing_port import PassingPort
from p2prl.protocol import wire_version
from p2prl.protocol.delegation import sign_delegation
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import BlobQuery, Hello, LedgerQuery, Padding, Want
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals
from p2prl_lab.sim.cheat import Cheat

_KEYS = 16
"""Free keys in whose names it asks, each at an address of its own."""

_ASKED_PER_TURN = 64
_PADDING_BYTES = 1_024
"""Sent with each question, for which an answer may be ten times as long."""

_STATEMENTS_PER_TURN = 64
_STATEMENT_LASTS_MS = 24 * 3600 * 1000


class _CrowdingPort(PassingPort):
    """Publishes nothing, and crowds the learner whenever its volunteer looks for messages."""

    def __init__(self, port: NetworkPort, crowd: Callable[[], None]) -> None:
        super().__init__(port)
        self._crowd = crowd

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """What arrived, after one more burst."""
        self._crowd()
        return super().poll(timeout_s)

    def send(self, message: control.ToNetwork) -> None:
        """Send a message, unless it publishes something."""
        if not isinstance(message, signals.Publish):
            super().send(message)


def starving(port: NetworkPort, cheat: Cheat) -> NetworkPort:
    """Free keys that ask for all that a learner answers with much, and pay for it with padding."""
    network, run = cheat.network, cheat.simulated
    peers = [identity_of(f"{cheat.identity.peer_id} asks {number}").peer_id for number in range(_KEYS)]
    for number, peer in enumerate(peers):
        network.add_stranger(peer, f"/ip4/44.{number}.9.1/tcp/4001")
    turns = itertools.count()

    def ask() -> None:
        for turn in itertools.islice(turns, _ASKED_PER_TURN):
            peer = peers[turn % _KEYS]
            hello = Hello(wire_version.WIRE_VERSION, run.run, int(Role.SEEDER), int(network.now * 1000), -1, 0)
            documents = Want((run.run, *(file.blob.root for file in run.manifest.files)))
            questions = (hello, documents, LedgerQuery(turn), BlobQuery(run.manifest.files[0].blob.root))
            cheat.ask(peer, Padding(bytes(_PADDING_BYTES)))
            cheat.ask(peer, questions[turn // _KEYS % len(questions)])

    return _CrowdingPort(port, ask)


def stating(port: NetworkPort, cheat: Cheat) -> NetworkPort:
    """Free keys that say of any number of owners that they work for them."""

    def state() -> None:
        for _ in range(_STATEMENTS_PER_TURN):
            key, owner = (Identity(cheat.rng.randbytes(16)) for _ in range(2))
            now_ms = int(cheat.network.now * 1000)
            cheat.send(
                key, sign_delegation(owner, key.public_key, serial=now_ms, expires_ms=now_ms + _STATEMENT_LASTS_MS)
            )

    return _CrowdingPort(port, state)
