"""A run folder as its learner leaves it: manifest, journal and metrics of volunteers with given paces."""

from __future__ import annotations

import json
from pathlib import Path

from p2prl.learner.journal.groups import GroupState, StoredGroup
from p2prl.net.storage.key_file import create_identity
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.rejection_reasons import RejectionReason
from tests.unit.learner.small_run import NOW, SmallRun, identity

UPDATE_S, INTERVAL_S, GROUPS = 10.0, 20.0, 4
"""An update takes ten of twenty seconds, with four groups."""

PACES = {"one": 10.0, "two": 15.0, "three": 30.0}
"""Seconds between two groups of a volunteer: together one in five seconds."""


def write_run(directory: Path, *, updates: int = 64) -> Path:
    """The folder of a run whose learner has made these updates and one before them, which waited for volunteers."""
    world = SmallRun(directory)
    world.publish(0, step=0)
    (directory / "run.manifest").write_bytes(world.manifest_raw)
    create_identity(directory / "key.json", world.learner)
    ends = NOW + updates * INTERVAL_S
    with world.journal.transaction():
        for peer, pace in PACES.items():
            for number in range(1, int((ends - NOW) / pace) + 1):
                _store(world, peer, number, NOW + number * pace, GroupState.USED)
        for number in range(200, 210):  # what nobody has verified tells no pace, and what is stale no fault
            _store(world, "one", number, NOW + number, GroupState.STORED)
            _store(world, "stranger", number, NOW + number, GroupState.EXPIRED)
            _store(world, "forger", number, NOW + number, GroupState.REJECTED)
    world.close()
    lines = [metrics_line(step, NOW + step * INTERVAL_S) for step in range(updates + 1)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def metrics_line(step: int, time: float, **others: float) -> dict[str, float]:
    """What the metrics log says of an update, as far as a plan reads it."""
    return {
        "step": step,
        "time": time,
        "seconds": INTERVAL_S,
        "groups": GROUPS,
        "publish_every": 2,
        "completion_tokens_mean": 6.0,
        "published/patch_bytes": 1000,
        "training/busy": 0.4,
        "training/publishing": 0.1,
        "training/checkpoint": 0.0,
        "training/waiting_groups": 0.5,
        **others,
    }


def _store(world: SmallRun, peer: str, number: int, arrived: float, state: GroupState) -> None:
    name = Digest(digest("p2prl/test-group", f"{peer}/{number}/{state}".encode()))
    world.journal.groups.store(StoredGroup(name, identity(peer).public_key, 0, number, b"raw", b"", b""), arrived)
    if state is GroupState.USED:
        world.journal.groups.mark_verified(name, behavior=b"b", rewards=b"r")
    elif state is not GroupState.STORED:
        reason = RejectionReason.SEED_MISMATCH if state is GroupState.REJECTED else ""
        world.journal.groups.mark_refused(name, state=state, reason=reason)
