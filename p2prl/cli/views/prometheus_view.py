"""Status of this machine's workers as text that Prometheus reads. Pure.

Only numbers are shown, with the worker's folder, its run and the names of its own counters as labels: nothing in them
says who or where a peer is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from p2prl.cli.views.metric_families import Family, family_of

_SKIPPED = frozenset({"pid", "time", "running"})
"""Keys that have a metric of their own or mean nothing over time."""

_LABEL_OF = {"peers": "role", "groups": "state", "reasons": "reason"}
"""Label for the keys of an object in a status file; `key` for any other."""

_QUOTE = '"'


def prometheus_text(workers: Sequence[Mapping[str, Any]]) -> str:
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
