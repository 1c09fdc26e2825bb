"""Floods from strangers against a real run, until it is killed: forged groups of many keys, verdicts, and garbage.

    python -m p2prl_lab.testing.storm LINK --keys 24

One peer passes on correctly signed groups of fresh keys: invented tokens in the right prompt, wrong prompts, the same
group again and again, and verdicts on groups that nobody has seen. Another, whose key is new every few seconds, sends
frames that are none to every peer it can reach. Prints totals as JSON lines. For chain4 runs of your own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from p2prl.clock import SystemClock
from p2prl.errors import P2PRLError
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.net.process.node_driver import NodeDriver
from p2prl.net.process.upload_budget import UploadBudget
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol import frames
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity, PeerId, peer_id_of
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import Verdict
from p2prl.protocol.link_messages import Push
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup
from p2prl.protocol.work_slots import SEED_RULE
from p2prl.swarm import signals
from p2prl.swarm.events import Event, PatchesReady, RunKnown, VersionReady
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs

_LISTEN = ("/ip4/127.0.0.1/tcp/0",)
_WAVE_S = 0.5
_GROUPS_PER_WAVE = 6
_POISON_EVERY_S = 8.0
_TOLD_EVERY_S = 5.0
_TOKENS = 10
"""Token ids below this exist in a chain4 model."""


class FloodingNode(Node):
    """A volunteer's node that pushes envelopes which it did not sign."""

    @property
    def linked(self) -> list[PeerId]:
        """Peers it has links to."""
        return list(self._core.connections.links)

    def push(self, peer: PeerId, raw: bytes) -> None:
        """Send an envelope without having been asked for it."""
        self._core.send(peer, Push(raw))


class _Storm:
    """Both floods of one run."""

    def __init__(self, link: JoinLink, keys: int, seed: int, folder: Path) -> None:
        self._link = link
        self._folder = folder
        self._rng = random.Random(f"storm/{seed}")
        self._keys = [Identity(self._rng.randbytes(16)) for _ in range(keys)]
        self._slots = Counter[bytes]()
        self._manifest: RunManifest | None = None
        self._work: GroupWork | None = None
        self._version: VersionReady | None = None
        self._sent: Counter[str] = Counter()
        self._last = b""

    async def run(self) -> None:
        """Flood until this process is killed."""
        clock, run = SystemClock(), self._link.run
        identity = Identity(os.urandom(16))
        transport = await self._arrive(identity)
        config = NodeConfig(role=Role.VOLUNTEER)
        node = FloodingNode(identity, run, MemoryBlobs(), random.Random(1), config, clock.now())

        def on_event(event: Event) -> None:
            self._on_event(node, event, clock.now())

        budget = UploadBudget(clock, cap_bytes_s=50e6, monthly_bytes=0, path=self._folder / "uploads.json")
        driver = NodeDriver(node, transport, clock, run, on_event, budget=budget)
        driver.wake()
        told_at = poisoned_at = time.monotonic()
        while True:
            await asyncio.sleep(_WAVE_S)
            self._wave(node, clock.now())
            driver.wake()
            now = time.monotonic()
            if now - poisoned_at > _POISON_EVERY_S:
                poisoned_at = now
                await self._poison()
            if now - told_at > _TOLD_EVERY_S:
                told_at = now
                sys.stdout.write(json.dumps({"linked": len(node.linked), **self._sent}) + "\n")
                sys.stdout.flush()

    async def _arrive(self, identity: Identity) -> HivemindTransport:
        """A transport of the run, as soon as a peer of it answers: the learner may be dead just now."""
        while True:
            with contextlib.suppress(P2PRLError, OSError):
                return await HivemindTransport.start(identity, listen=_LISTEN, bootstrap=self._link.bootstrap)
            await asyncio.sleep(_WAVE_S)

    def _on_event(self, node: Node, event: Event, now: float) -> None:
        match event:
            case RunKnown(manifest=manifest):
                loaded = tiny_model("chain4", seed=0)
                self._manifest = manifest
                self._work = GroupWork(manifest, self._link.run, TextCodec(loaded.tokenizer, loaded.model))
            case PatchesReady(digest=name):
                node.order(signals.VersionRebuilt(name, ok=False), now)
            case VersionReady():
                self._version = event
            case _:
                pass

    def _wave(self, node: FloodingNode, now: float) -> None:
        manifest, version = self._manifest, self._version
        if manifest is None or version is None or not node.linked:
            return
        learner = peer_id_of(manifest.learner)
        for _ in range(_GROUPS_PER_WAVE):
            key = self._rng.choice(self._keys)
            raw = seal(key, self._group(key, version), run=self._link.run, now=now)
            self._push(node, learner, raw, "groups")
            self._last = self._last if self._last and self._rng.random() < 0.9 else raw
            self._push(node, learner, self._last, "duplicates")
            unknown = Verdict(self._rng.randbytes(32), key.public_key, 0, True, "", 8, 0, 0.0, bytes(32))
            verdict = seal(self._rng.choice(self._keys), unknown, run=self._link.run, now=now)
            self._push(node, self._rng.choice(node.linked), verdict, "verdicts")

    def _push(self, node: FloodingNode, peer: PeerId, raw: bytes, what: str) -> None:
        if peer in node.linked:
            node.push(peer, raw)
            self._sent[what] += 1

    def _group(self, key: Identity, version: VersionReady) -> RolloutGroup:
        """Invented tokens in the next slot of a key; a third of them in a prompt that is not the slot's."""
        assert self._work is not None
        assert self._manifest is not None
        rng, sampling = self._rng, self._manifest.sampling
        slot = self._slots[key.public_key]
        self._slots[key.public_key] += 1
        assignment = self._work.assign(beacon=version.manifest.beacon, peer=key.public_key, slot=slot)
        prompt = assignment.prompt_ids if rng.random() < 0.67 else assignment.prompt_ids[::-1]
        tokens = sampling.max_new_tokens
        completions = tuple(
            Completion(
                tokens=np.asarray([rng.randrange(_TOKENS) for _ in range(tokens)], dtype="<u4").tobytes(),
                logprobs=np.asarray([-rng.random() for _ in range(tokens)], dtype="<f2").tobytes(),
                finished=False,
                reward=1.0,
            )
            for _ in range(sampling.group_size)
        )
        return RolloutGroup(
            version=version.manifest.version,
            policy=version.digest,
            slot=slot,
            task=assignment.task,
            prompt=np.asarray(prompt, dtype="<u4").tobytes(),
            completions=completions,
            engine=EngineClass("transformers", "5", "float32", "cpu"),
            seconds=1.0,
            seeds=SEED_RULE,
        )

    async def _poison(self) -> None:
        """Connect as a stranger and send what no peer can read."""
        rogue = Identity(os.urandom(16))
        garbage = [
            b"\x00",
            self._rng.randbytes(300),
            b"\xff" * 4_096,
            frames.pack(Push(self._rng.randbytes(500))),
            frames.pack(Push(self._forged(rogue))),
        ]
        with contextlib.suppress(P2PRLError, OSError):
            transport = await HivemindTransport.start(rogue, listen=_LISTEN, bootstrap=self._link.bootstrap)
            transport.set_receiver(_ignore)
            try:
                for address in self._link.bootstrap:
                    with contextlib.suppress(P2PRLError, OSError):
                        peer = await transport.connect(address)
                        for frame in garbage:
                            await transport.send(peer, frame, timeout_s=3.0)
                            self._sent["garbage"] += 1
            finally:
                await transport.close()

    def _forged(self, key: Identity) -> bytes:
        """A group whose signature is wrong."""
        unknown = Verdict(bytes(32), key.public_key, 0, True, "", 8, 0, 0.0, bytes(32))
        raw = bytearray(seal(key, unknown, run=bytes(range(32)), now=time.time()))
        raw[-1] ^= 1
        return bytes(raw)


def _ignore(peer: PeerId, frame: bytes) -> None:
    """What others send to a stranger does not matter."""


def main() -> None:
    """Flood the run of a link."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("link")
    parser.add_argument("--keys", type=int, default=24, help="keys that sign groups and verdicts")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="p2prl-storm-") as folder:
        asyncio.run(_Storm(parse_link(given.link), given.keys, given.seed, Path(folder)).run())


if __name__ == "__main__":
    main()
