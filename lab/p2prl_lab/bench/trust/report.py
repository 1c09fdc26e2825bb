"""The trust benchmark's rows as tables: what is credited of each attack, what honest work is lost, what floods cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from p2prl_lab.bench.trust.benchmark import Rows

_MISSING = "–"

Row = dict[str, Any]


def as_markdown(rows: Rows) -> str:
    """One table for each kind of rows that there are."""
    made = (
        (
            "Attacks: credited of the groups delivered (forged among these: their worst margin, nats)",
            attack_table(rows["attacks"]),
        ),
        ("Honest groups rejected", reject_table(rows["false_rejects"])),
        ("Groups with one invented token that are credited", power_table(rows["power"])),
        ("Choosers", chooser_table(rows["choosers"])),
        ("Honest volunteers: groups voided", bill_table(rows["honest_bill"])),
        ("Learners that reject honest work: what a volunteer gives away", liar_table(rows["liars"])),
        ("Floods: honest updates, of those without the flood", flood_table(rows["floods"])),
        ("Tables of a node", table_table(rows["tables"])),
        ("Validators", validator_table(rows["validators"])),
        ("Bytes sent for each byte of a stranger's messages", amplification_table(rows["amplification"])),
        ("Chunks of honest peers under a flood of questions, of those without it", starved_table(rows["starved"])),
        ("Cost", cost_table(rows["cost"])),
    )
    return "\n\n".join(f"{title}\n\n{table}" for title, table in made if table)


def summary_table(rows: Sequence[Row]) -> str:
    """A line for each attack, and for each number type what is credited of all sizes together, forged ones among it,
    and the nats that their worst token lies below the draw."""
    usual = [row for row in rows if row["temperature"] == 1.0]
    if not usual:
        return ""
    dtypes = list(dict.fromkeys(row["dtype"] for row in usual))
    lines = []
    for attack in dict.fromkeys(row["attack"] for row in usual):
        line = [attack]
        for dtype in dtypes:
            mine = [row for row in usual if (row["attack"], row["dtype"]) == (attack, dtype)]
            counted, forged = (sum(row[key] for row in mine) for key in ("credited", "forged_credited"))
            worst = max((row["worst_margin"] for row in mine), default=0.0)
            line += [f"{counted}/{sum(row['delivered'] for row in mine)}", str(forged), f"{worst:.2g}"]
        lines.append(line)
    head = ["attack", *(name for dtype in dtypes for name in (f"{dtype}: credited", "forged", "worst, nats"))]
    return _table(head, lines, left=1)


def attack_table(rows: Sequence[Row]) -> str:
    """A line for each attack and number type, a column for each size: credited/delivered.

    Where some of the credited are forged: their number, and the nats that their worst token lies below the draw.
    """
    if not rows:
        return ""
    sizes = sorted({row["tokens"] for row in rows})
    cases = dict.fromkeys((row["attack"], row["dtype"], row["temperature"]) for row in rows)
    found = {(row["attack"], row["dtype"], row["temperature"], row["tokens"]): row for row in rows}
    return _table(
        ["attack", "dtype", "T", *(f"{size:,}" for size in sizes)],
        [
            [attack, dtype, f"{temperature:g}"]
            + [_credited(found.get((attack, dtype, temperature, size))) for size in sizes]
            for attack, dtype, temperature in cases
        ],
        left=2,
    )


def _credited(row: Row | None) -> str:
    if row is None:
        return _MISSING
    text = f"{row['credited']}/{row['delivered']}"
    return text + (f" ({row['forged_credited']}: {row['worst_margin']:.2g})" if row["forged_credited"] else "")


def reject_table(rows: Sequence[Row]) -> str:
    """Rejected of all honest groups, by policy, number type, noise and temperature."""
    return _by_size(rows, ("policy", "dtype", "noise", "temperature"), "rejected")


def power_table(rows: Sequence[Row]) -> str:
    """Credited of all groups with an invented token, by how far it lies below the draw."""
    return _by_size(rows, ("policy", "dtype", "noise", "temperature", "margin"), "credited")


def _by_size(rows: Sequence[Row], keys: Sequence[str], counted: str) -> str:
    if not rows:
        return ""
    sizes = sorted({row["tokens"] for row in rows})
    cases = dict.fromkeys(tuple(row[key] for key in keys) for row in rows)
    found = {(*(row[key] for key in keys), row["tokens"]): row for row in rows}
    cells = [
        [*(_plain(value) for value in case), *(_share(found.get((*case, size)), counted) for size in sizes)]
        for case in cases
    ]
    return _table([*keys, *(f"{size:,}" for size in sizes)], cells, left=2)


def _share(row: Row | None, counted: str) -> str:
    return _MISSING if row is None else f"{row[counted]}/{row['groups']}"


def chooser_table(rows: Sequence[Row]) -> str:
    """Influence of volunteers that choose what they deliver, and the final reward less that of the honest run."""
    keys = ("attack", "choice", "checks", "keys", "honest", "influence", "cap", "reward_difference", "standard_error")
    return _plain_table(rows, keys, left=3)


def bill_table(rows: Sequence[Row]) -> str:
    """Groups of honest volunteers that were voided, by what happened to them."""
    return _plain_table(rows, ("event", "trickle", "groups", "voided", "waiting"))


def liar_table(rows: Sequence[Row]) -> str:
    """What became of a volunteer under each learner."""
    keys = ("learner", "sampled", "credited", "rejected", "stopped_after_s", "exit_code", "others_credited")
    return _plain_table(rows, keys)


def flood_table(rows: Sequence[Row]) -> str:
    """Shares of the honest groups trained on."""
    keys = ("flood", "honest_share_during", "honest_share_after", "newcomer_share_during")
    return _plain_table(rows, keys)


def table_table(rows: Sequence[Row]) -> str:
    """When an honest newcomer gets its place, and how much of the time it keeps it."""
    return _plain_table(rows, ("table", "keys", "newcomer_after_s", "newcomer_share"))


def validator_table(rows: Sequence[Row]) -> str:
    """What each kind of validator is paid."""
    return _plain_table(rows, ("validator", "verdicts", "in_ledger", "paid_tokens", "credited_tokens"))


def amplification_table(rows: Sequence[Row]) -> str:
    """What a node sends for a stranger's messages, at once and in chunks."""
    return _plain_table(rows, ("message", "ratio", "paced_ratio"))


def starved_table(rows: Sequence[Row]) -> str:
    """What questions of strangers leave of the chunks that honest peers get."""
    return _plain_table(rows, ("upload_mbit", "keys", "addresses", "honest_share_during", "honest_share_after"))


def cost_table(rows: Sequence[Row]) -> str:
    """What the checks cost."""
    return _plain_table(rows, tuple(rows[0]) if rows else ())


def _plain_table(rows: Sequence[Row], keys: Sequence[str], left: int = 1) -> str:
    if not rows:
        return ""
    return _table(list(keys), [[_plain(row[key]) for key in keys] for row in rows], left=left)


def _plain(value: object) -> str:
    if value is None:
        return "never"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(head: list[str], lines: list[list[str]], *, left: int) -> str:
    """The first `left` columns are text."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in ([name.replace("_", " ") for name in head], rule, *lines)
    )
