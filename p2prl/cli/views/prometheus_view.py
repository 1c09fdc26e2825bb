"""Status of this machine's workers as text that Prometheus reads. Pure.

Only numbers are shown, with the worker's folder, its run and the names of its own counters as labels: nothing in them
says who or where a peer is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_PARTS = {"evaluation": ("task",), "reward": ("task", "part"), "stale": ("bucket",)}
"""First part of a key with three or four, and the labels that the parts between it and the last are."""

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
    "reward_model_cut": "Completions that the reward model could not read to their end since the learner started.",
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
    "plan/realised": "Share of the last 16 updates' time in which training had groups.",
    "plan/predicted_utilisation": "The same, as the learner foresees it for the next 16 updates.",
    "plan/low": "Lower end of the interval of that forecast, which eight of ten lie in.",
    "plan/high": "Upper end of the interval of that forecast.",
    "plan/error": "The newest forecast that was compared with what came, less what came.",
}


@dataclass(frozen=True, slots=True)
class Family:
    """A metric as Prometheus names it."""

    name: str
    kind: str
    """`counter` or `gauge`."""
    help: str
    labels: dict[str, str] = field(default_factory=dict)
    """What the key says beside its name: the task of an evaluation, the part of a reward."""


def family_of(key: str) -> Family:
    """The family of a key of a status file."""
    parts, labels = key.split("/"), {}
    if 3 <= len(parts) <= 2 + len(_PARTS.get(parts[0], ())):
        labels = dict(zip(_PARTS[parts[0]], parts[1:-1], strict=False))
        parts = [parts[0], *(["part"] if len(parts) == 4 else []), parts[-1]]
    name = "p2prl_" + re.sub(r"[^a-z0-9]+", "_", "_".join(parts).lower()).strip("_")
    if key in _COUNTERS:
        return Family(f"{name}_total", "counter", _COUNTERS[key], labels)
    return Family(name, "gauge", _GAUGES.get(key, f"The status file's {'/'.join(parts)} (docs/metrics.md)."), labels)


DESCRIBED = frozenset({*_COUNTERS, *_GAUGES})
"""Keys with a description of their own."""


_SKIPPED = frozenset({"pid", "time", "running"})
"""Keys that have a metric of their own or mean nothing over time."""

_LABEL_OF = {"peers": "role", "groups": "state", "reasons": "reason"}
"""Label for the keys of an object in a status file; `key` for any other."""

_QUOTE = '"'


def prometheus_text(workers: Sequence[Mapping[str, object]]) -> str:
    """The metrics of all workers in the text format 0.0.4, each family once."""
    families: dict[str, tuple[Family, list[str]]] = {}
    for worker in workers:
        labels = {
            "role": str(worker.get("role", "unknown")),
            "run": str(worker.get("run", "")),
            "seat": str(worker.get("seat", "")),
        }
        for key, extra, value in _samples(worker):
            family = family_of(key)
            line = f"{family.name}{{{_labels({**labels, **family.labels, **extra})}}} {_number(value)}"
            families.setdefault(family.name, (family, []))[1].append(line)
    lines: list[str] = []
    for name, (family, samples) in sorted(families.items()):
        lines += [f"# HELP {name} {_one_line(family.help)}", f"# TYPE {name} {family.kind}", *samples]
    return "\n".join(lines) + "\n" if lines else ""


def _samples(worker: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str], float]]:
    """(key, labels, value) of every number."""
    yield "running", {}, float(bool(worker.get("running")))
    if isinstance(worker.get("state"), str):
        yield "state", {"state": worker["state"]}, 1.0
    if _is_number(worker.get("time")):
        yield "last_report_timestamp_seconds", {}, worker["time"]
    for key, value in worker.items():
        if key in _SKIPPED:
            continue
        if _is_number(value):
            yield key, {}, value
        elif isinstance(value, Mapping) and key != "controls":
            label = _LABEL_OF.get(key, "key")
            for part, number in value.items():
                if _is_number(number):
                    yield key, {f"{label}_of_{key}" if label == "role" else label: str(part)}, number


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_one_line(value, _QUOTE)}"' for name, value in labels.items())


def _one_line(text: str, quote: str = "") -> str:
    """`text` as the format wants it: HELP escapes backslashes and line feeds, labels their quotation mark as well."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace(quote, f"\\{quote}") if quote else escaped


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else "+Inf" if value > 0 else "-Inf"
