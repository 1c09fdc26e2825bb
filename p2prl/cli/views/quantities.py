"""Sizes, rates, counts and policy versions formatted for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2prl.plain_text import counted
from p2prl.quantity_text import size_text

_NONE = "–"


def state_text(state: str, *, in_reach: bool) -> str:
    """A volunteer's state; says so when it samples without a learner in reach."""
    if state == "sampling" and not in_reach:
        return "sampling; learner unreachable, groups wait on disk"
    return state


def reaches_learner(worker: Mapping[str, Any]) -> bool:
    """Whether a volunteer of this status file has a link to the learner, or gets its receipts over others."""
    return bool(worker.get("peers", {}).get("learner") or worker.get("hears_learner"))


def version_text(version: int) -> str:
    """A policy version; −1 is none."""
    return "no weights yet" if version < 0 else f"v{version}"


def rate_text(tokens_per_s: float) -> str:
    """A sampling speed; a dash before the first measurement."""
    return f"{tokens_per_s:,.0f} tokens/s" if tokens_per_s >= 0.5 else f"{_NONE} tokens/s"


def reward_text(reward: float | None) -> str:
    """A mean reward; a dash before the first group."""
    return _NONE if reward is None else f"{reward:.2f}"


def peers_text(peers: Mapping[str, int]) -> str:
    """Linked peers by role."""
    return ", ".join(counted(count, role) for role, count in peers.items()) or "none yet"


_REACH = {
    "direct": "others reach this machine directly",
    "mapped": "others reach this machine through a port that its router opened",
    "punched": "other homes reach this machine through its router; strangers cannot",
    "relayed": "others reach this machine through a relay only",
    "outgoing": "nobody can dial this machine; it has the links that it opened",
    "local": "linked on this local network only",
    "cut off": "linked with nobody",
}

_OPEN_A_PORT = "UPnP in the router, or a forwarded port with --listen and --public, would let you relay more"

_HELPS = {
    "relayed": _OPEN_A_PORT,
    "outgoing": _OPEN_A_PORT,
    "cut off": "check the connection and the firewall, or ask for a newer join link",
}
"""What the owner can do. A punched machine is well off: home networks need nothing from their routers."""


def reach_text(reach: str) -> str:
    """How others reach this machine, and what would help; empty while unknown."""
    text, help_ = _REACH.get(reach, ""), _HELPS.get(reach)
    return f"{text}: {help_}" if text and help_ else text


def received_text(worker: Mapping[str, Any]) -> str:
    """Bytes of weights that a worker received, the share that came from volunteers, and what passed circuits if any."""
    received = worker.get("weight_bytes_received", 0)
    text = f"{size_text(received)} received"
    if received:
        text += f", {worker.get('weight_bytes_from_peers', 0) / received:.0%} from volunteers"
    if circuits := worker.get("weight_bytes_over_circuits", 0):
        text += f", {circuits / received:.0%} over circuits"
    return text


def share_text(held_bytes: int, all_bytes: int) -> str:
    """How much of a download is here; empty while its size is unknown."""
    return f"{size_text(held_bytes)} of {size_text(all_bytes)}" if all_bytes else ""


def downloads_line(patch_bytes: int, full_bytes: int, version_bytes: int) -> str:
    """Bytes downloaded as patches and as full weights, compared with the size of the resulting versions."""
    spent = patch_bytes + full_bytes
    if not spent:
        return "downloads  no version"
    return (
        f"downloads  {size_text(patch_bytes)} of patches and {size_text(full_bytes)} of full weights"
        f" for versions of {size_text(version_bytes)}: {version_bytes / spent:.1f} times less"
    )


def own_ledger_text(receipts: int, tokens: int) -> str:
    """What a validator's own ledger holds."""
    return f"{counted(receipts, 'receipt')}, {counted(tokens, 'token')}"


def energy_text(energy: object) -> str:
    """What a worker's status says of the energy of its session; empty where nothing was measured."""
    if not isinstance(energy, Mapping) or not (parts := energy.get("of")):
        return ""
    watts, rate, cost = energy.get("watts"), energy.get("tokens_per_kwh"), energy.get("cost")
    said = [] if watts is None else [f"{watts:.0f} W now"]
    said.append(f"{kwh_text(energy['kwh'])} in this session{'' if cost is None else f', {cost_text(cost, energy)}'}")
    if rate is not None:
        said.append(f"{rate:,} verified tokens a kWh")
    return f"{'; '.join(said)}. Measured: {' and '.join(map(str, parts))}, with all else that ran there"


def kwh_text(kwh: float) -> str:
    """An amount of energy: three digits after the point below ten."""
    return f"{kwh:,.3f} kWh" if kwh < 10 else f"{kwh:,.1f} kWh"


def cost_text(cost: float, energy: Mapping[str, Any]) -> str:
    """What energy cost, in the currency that its owner named, if any."""
    return f"{cost:,.2f} {energy.get('currency') or 'at your price'}"
