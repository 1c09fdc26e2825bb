"""Figures of a lab run from its traffic and from what the workers say. Pure.

Shares and directness come from the packets that the lab carried, not from what the peers believe: bytes that reach a
home through a circuit of the learner come from the learner here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

Rows = Iterable[Mapping[str, Any]]
"""Rows of `RouterControl.traffic`."""


@dataclass(frozen=True, slots=True)
class HomeShares:
    """Where the bytes into the homes came from; `total_bytes` counts headers and retransmissions too."""

    total_bytes: int
    learner: float
    public: float
    homes: float


def talked_since(rows: Rows) -> dict[frozenset[str], float]:
    """Pairs of sites that have talked with each other, and when both directions had."""
    at = {(row["sender"], row["receiver"]): row["talked_at"] for row in rows if row["talked_at"] is not None}
    return {
        frozenset(way): max(at[way], at[way[1], way[0]]) for way in at if way[0] < way[1] and (way[1], way[0]) in at
    }


def home_shares(rows: Rows, kinds: Mapping[str, str], learner: str) -> HomeShares:
    """Shares of the bytes delivered into homes, by the kind of their last sender."""
    sums = {"learner": 0, "public": 0, "homes": 0}
    for row in rows:
        if kinds[row["receiver"]] == "public":
            continue
        sender = row["sender"]
        group = "learner" if sender == learner else "public" if kinds[sender] == "public" else "homes"
        sums[group] += row["delivered_bytes"]
    total = sum(sums.values())
    shares = {group: round(count / total, 4) if total else 0.0 for group, count in sums.items()}
    return HomeShares(total, **shares)


def home_to_home_bytes(rows: Rows, kinds: Mapping[str, str], learner: str) -> dict[str, int]:
    """Bytes that each home got from other homes, headers included; the learner's own come from no other home."""
    sums = {name: 0 for name, kind in kinds.items() if kind != "public" and name != learner}
    for row in rows:
        if row["receiver"] in sums and row["sender"] in sums:
            sums[row["receiver"]] += row["delivered_bytes"]
    return sums


def pair_rows(
    kinds: Mapping[str, str], started: Mapping[str, float], talked: Mapping[frozenset[str], float]
) -> list[dict[str, Any]]:
    """One row for each pair of homes: whether they talked directly, and how long after both had started."""
    pairs = []
    for a, b in combinations(sorted(name for name, kind in kinds.items() if kind != "public"), 2):
        at = talked.get(frozenset((a, b)))
        after_s = None if at is None else round(max(0.0, at - max(started[a], started[b])), 1)
        pairs.append(
            {"a": a, "b": b, "kind_a": kinds[a], "kind_b": kinds[b], "direct": at is not None, "after_s": after_s}
        )
    return pairs


def learner_copies(rows: Rows, learner: str, weight_bytes: int) -> float | None:
    """The learner's egress over the weights that one worker needs; None without weights."""
    sent = sum(row["sent_bytes"] for row in rows if row["sender"] == learner)
    return round(sent / weight_bytes, 2) if weight_bytes else None


def claimed_share(statuses: Iterable[Mapping[str, Any]]) -> float | None:
    """The learner's share of the weights into homes, as the homes count it: by the peer that sent them."""
    found = [
        (status.get("weight_bytes_received", 0), status.get("weight_bytes_from_learner", 0)) for status in statuses
    ]
    total, learner = (sum(counts) for counts in zip(*found, strict=True)) if found else (0, 0)
    return round(learner / total, 4) if total else None


def slowest(times: Mapping[str, float | None]) -> float | None:
    """The longest of them; None where one never came."""
    return None if None in times.values() else max((at for at in times.values() if at is not None), default=0.0)
