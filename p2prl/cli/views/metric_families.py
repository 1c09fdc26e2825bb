"""Metric families of a status file: what each number means, whether it only grows, and which part is a label. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_PARTS = {"evaluation": "task", "stale": "bucket"}
"""First part of a key with three, and the label that its second part is."""

_COUNTERS = {
    "weight_bytes_received": "Weights downloaded since the start, bytes.",
    "weight_bytes_from_learner": "Weights downloaded from the learner since the start, bytes.",
    "weight_bytes_from_peers": "Weights downloaded from other volunteers since the start, bytes.",
    "weight_bytes_over_circuits": "Weights downloaded through a third peer since the start, bytes.",
    "weight_bytes_sent": "Weights uploaded to others since the start, bytes.",
    "patch_bytes": "Patches downloaded since the start, bytes.",
    "whole_bytes": "Full weights downloaded since the start, bytes.",
    "brought_bytes": "Size as full weights of all versions downloaded since the start, bytes.",
    "spared_bytes": "Download saved by the base model since the start, bytes.",
    "groups_seen": "Groups announced to the validator since its start.",
    "groups_replayed": "Groups that the validator has replayed since its start.",
    "verdicts_passed": "Signed verdicts that a group matches its slot and policy.",
    "verdicts_failed": "Signed verdicts that a group does not match its slot or policy.",
    "checks_agreed": "Own verdicts that the learner's replay confirms.",
    "checks_contradicted": "Own verdicts that contradict the learner's replay.",
    "checks_failed": "Own verdicts whose log-probs are not those of the learner's replay.",
    "rewards_agreed": "Replayed groups whose mean reward is that of the learner's receipt.",
    "rewards_disputed": "Replayed groups whose mean reward is another.",
    "rewards_unclear": "Replayed groups whose answers failed to be scored here or at the learner.",
    "lost/groups": "Groups that grew too stale since the learner started.",
    "scorer_failures": "Answers that a scorer failed on since the learner started.",
}
"""Numbers that only grow while the process lives."""

_GAUGES = {
    "running": "1 while the process that wrote the status file runs, else 0.",
    "state": "1 for the state that it is in.",
    "last_report_timestamp_seconds": "When the status file was written, seconds since 1970.",
    "version": "Policy version in the engine, or published; -1 before the first.",
    "announced_version": "Newest policy version that the learner has announced; -1 before the first.",
    "learner_step": "Learner step at which the announced version was published; -1 before the first.",
    "peers": "Linked peers by role; of a learner, distinct volunteers in the newest batch.",
    "groups": "Groups of this worker by state; of a learner, groups in the newest batch.",
    "groups_waiting": "Groups chosen for a replay and not replayed yet.",
    "reasons": "Groups on this worker's disk that earned nothing, by reason.",
    "verified_tokens": "Completion tokens of this worker's verified groups.",
    "tokens_per_s": "Tokens a second that were decoded last.",
    "reward_recent": "Moving average of the rewards of this worker's groups, scored by itself.",
    "resident_bytes": "Memory measured of the role's own process, bytes.",
    "network_resident_bytes": "Memory measured of its network process, bytes.",
    "network_daemon_bytes": "Memory measured of its network daemon, bytes.",
    "run_progress": "What a volunteer has heard of the run since its start, by key.",
    "own_receipts": "Groups with a receipt in the validator's own ledger.",
    "own_tokens": "Completion tokens of the groups in the validator's own ledger.",
    "upload_mbit": "Rate at which weights may be uploaded, Mbit/s.",
    "uploaded_bytes_month": "Weights uploaded in this calendar month, bytes.",
    "step": "Updates that the learner has done.",
    "target_updates": "Step at which the run ends; 0 when it goes on until stopped.",
    "reward": "Mean reward of the newest batch.",
    "publishing": "Share of the next version that is encoded.",
}


@dataclass(frozen=True, slots=True)
class Family:
    """A metric as Prometheus names it."""

    name: str
    kind: str
    """`counter` or `gauge`."""
    help: str
    labels: dict[str, str] = field(default_factory=dict)
    """What the key says beside its name: the task of an evaluation."""


def family_of(key: str) -> Family:
    """The family of a key of a status file."""
    parts, labels = key.split("/"), {}
    if len(parts) == 3 and parts[0] in _PARTS:
        labels[_PARTS[parts[0]]] = parts.pop(1)
    name = "p2prl_" + re.sub(r"[^a-z0-9]+", "_", "_".join(parts).lower()).strip("_")
    if key in _COUNTERS:
        return Family(f"{name}_total", "counter", _COUNTERS[key], labels)
    return Family(name, "gauge", _GAUGES.get(key, f"The status file's {'/'.join(parts)} (docs/metrics.md)."), labels)


DESCRIBED = frozenset({*_COUNTERS, *_GAUGES})
"""Keys with a description of their own."""
