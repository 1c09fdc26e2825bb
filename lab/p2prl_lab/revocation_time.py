"""Time until revocations take effect at a learner's node that 64 links flood with owners' statements, over sockets.

    python -m p2prl_lab.revocation_time --json

Owners of some machines have delegated them when the flood begins. Each key of the flood is a peer of its own subnet,
and sends delegations of fresh machines by fresh owners. Once these have used up the quota of their time, a process in
the subnet of one of them passes on a revocation of each machine. It has taken effect when the learner counts the
machine for itself again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from p2prl.clock import SystemClock
from p2prl.learner.intake.owners import Owners
from p2prl.learner.journal.journal import Journal
from p2prl.net.process import control
from p2prl.net.process.handle import NetworkHandle
from p2prl.protocol.delegation import DAY_MS, sign_delegation, sign_revocation
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_chain import OWNERS_STATEMENTS
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals
from p2prl.swarm.gossip.statement_quota import MAX_IN_ALL, MAX_PER_LINK
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.bench.trust.bare_nodes import POLL_S, START_S, address_of, start_node
from p2prl_lab.bench.trust.free_keys import free_keys
from p2prl_lab.progress_lines import say

_PATIENCE_S = 120.0
_FLOOD_S = 280.0
"""Longest wait for a used-up quota: less than the window it is for."""

_USED_UP = 0.97
"""Of the quota: honest statements are in it too."""


class ListeningLearner:
    """A learner's network process, and the learner's own table of owners."""

    def __init__(self, folder: Path) -> None:
        key, now = identity_of("learner"), SystemClock().now()
        manifest = seal(key, run_manifest_of(key), run=bytes(32), now=now)
        self.run = envelope_digest(manifest)
        self.owners = Owners(Journal(folder / "journal.db"), SystemClock())
        self.statements = 0
        """Those that the node has let pass."""
        config = NodeConfig(role=Role.LEARNER)
        self.network = start_node(folder, "learner", "127.0.0.1", self.run, config, manifest=manifest)
        self.address = address_of(self.network)

    def listen(self) -> None:
        """Take in what the node passes on."""
        opened = [
            open_envelope(message.envelope, now=None)
            for message in self.network.poll(POLL_S)
            if isinstance(message, control.EnvelopeArrived)
        ]
        statements = [each for each in opened if each.kind in OWNERS_STATEMENTS]
        self.statements += len(statements)
        self.owners.receive(statements)

    def listen_until(self, is_so: Callable[[], bool], what: str, *, seconds: float = _PATIENCE_S) -> float:
        """Seconds until something is so; AssertionError if that takes too long."""
        began = time.monotonic()
        while not is_so():
            self.listen()
            assert time.monotonic() < began + seconds, f"{what}: not within {seconds:g} s"
        return time.monotonic() - began


def measure(folder: Path, *, keys: int, machines: int) -> dict[str, Any]:
    """Revoke `machines` under a flood of `keys`, which has used up what it may say by then."""
    with ExitStack() as stack:
        learner = ListeningLearner(folder)
        stack.enter_context(closing(learner.network))
        now_ms = int(SystemClock().now() * 1000)
        owned = [(identity_of(f"owner {number}"), identity_of(f"machine {number}")) for number in range(machines)]

        def joins(name: str, host: str, **statements: Any) -> NetworkHandle:
            config = NodeConfig(role=Role.VOLUNTEER, **statements)
            network = start_node(folder, name, host, learner.run, config, bootstrap=(learner.address,))
            stack.enter_context(closing(network))
            return network

        def is_owned(number: int) -> bool:
            owner, machine = owned[number]
            return learner.owners.identity_of(machine.public_key) == owner.public_key

        for number, (owner, machine) in enumerate(owned):
            delegated = sign_delegation(owner, machine.public_key, serial=now_ms, expires_ms=now_ms + DAY_MS)
            joins(f"machine {number}", f"127.1.{number}.1", delegations=(delegated,))
        learner.listen_until(lambda: all(map(is_owned, range(machines))), "delegations")
        # In the subnet of one of the flood's keys, whose shares it has to do with.
        sender, key = joins("sender", "127.2.0.2"), identity_of("sender")
        learner.listen_until(lambda: _is_linked(sender), "a link", seconds=START_S)
        flood = stack.enter_context(
            free_keys(learner.address, learner.run, keys=keys, addresses=keys, flood="statements")
        )
        before = learner.statements
        flood.begin()
        say(f"{keys} keys flood")
        full = _USED_UP * min(MAX_IN_ALL, keys * MAX_PER_LINK)
        filled_s = learner.listen_until(
            lambda: learner.statements - before >= full, "a used-up quota", seconds=_FLOOD_S
        )  # fmt: skip
        passed, took_s = learner.statements - before, []
        for number, (owner, machine) in enumerate(owned):
            assert is_owned(number), f"machine {number} counted for itself before it was revoked"
            now = SystemClock().now()
            revocation = sign_revocation(
                owner, machine.public_key, serial=int(now * 1000), from_ms=int(now * 1000)
            )  # fmt: skip
            sender.send(signals.Publish(seal(key, revocation, run=learner.run, now=now)))
            took_s.append(learner.listen_until(lambda number=number: not is_owned(number), "a revocation"))  # type: ignore[misc]
            say(f"revocation {number + 1}: in effect after {took_s[-1]:.2f} s")
        sent = flood.end()
        return {
            "links": keys,
            "sent": sent["turns"],
            "passed_before": passed,
            "filled_s": round(filled_s, 1),
            "quota": MAX_IN_ALL,
            "in_effect_s": [round(each, 3) for each in took_s],
        }


def _is_linked(network: NetworkHandle) -> bool:
    network.poll(POLL_S)
    return network.status is not None and dict(network.status.peers).get("learner", 0) > 0


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--machines", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p2prl-revocation-") as folder:
        report = measure(
            Path(folder), keys=arguments.keys, machines=arguments.machines
        )  # fmt: skip
    print(json.dumps(report, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()
