"""Between a node and its role: events become control messages, control messages become calls. No I/O.

The network process does this over a socket, the simulator in one thread; a role cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from p2prl.net.process import control
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.wire_codec import encode
from p2prl.swarm import events
from p2prl.swarm.node import Node


class NetworkPort(Protocol):
    """A role's side of the network: what `p2prl.net.process.handle.NetworkHandle` is, and the simulator's stand-in."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where this node can be dialled; empty until it is up."""
        ...

    @property
    def status(self) -> control.Status | None:
        """The last status heard, if any."""
        ...

    def send(self, message: control.ToNetwork) -> None:
        """Hand a message to the node."""
        ...

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """Messages that arrived, waiting up to `timeout_s` for the first."""
        ...

    def close(self) -> None:
        """Leave the network."""
        ...


def apply_message(node: Node, message: control.ToNetwork, now: float) -> None:
    """Carry out one message of the role's."""
    match message:
        case control.Publish(envelope=raw):
            node.publish(raw, now)
        case control.FetchPolicy(policy=name):
            node.fetch_policy(Digest(name), now)
        case control.StartFrom(state=state):
            node.start_from(Digest(state) if state else None, now)
        case control.VersionRebuilt(policy=name, ok=ok):
            node.rebuilt(Digest(name), ok, now)
        case control.LedgerHeight(height=height):
            node.set_ledger_height(height)
        case control.QueryLedger(from_height=height):
            node.ask_ledger(height)
        case control.SendLedger(peer=peer, from_height=height, entries=entries):
            node.send_ledger(PeerId(peer), height, entries)
        case control.Start():
            pass


def message_of(
    event: events.Event, *, path_of: Callable[[bytes], Path], status: Callable[[], control.Status]
) -> control.FromNetwork:
    """The message an event becomes. `path_of` says where a blob lies, `status` makes a fresh status."""
    match event:
        case events.RunKnown(raw=raw):
            return control.RunKnown(raw)
        case events.FileReady(name=name, root=root):
            return control.FileReady(name, str(path_of(root)))
        case events.VersionAnnounced(manifest=manifest):
            return control.VersionAnnounced(manifest.version, manifest.step)
        case events.VersionReady(manifest=manifest, digest=policy):
            return control.VersionReady(policy, encode(manifest), str(path_of(manifest.weights.root)))
        case events.PatchesReady(manifest=manifest, digest=policy, dtype=dtype, base=base, patches=patches):
            return control.PatchesReady(
                policy=policy,
                state=manifest.weights_digest,
                size_bytes=manifest.weights.size_bytes,
                dtype=dtype,
                base="" if base is None else str(path_of(base)),
                patches=tuple(str(path_of(root)) for root in patches),
                target=str(path_of(manifest.weights.root)),
            )
        case events.BaseReleased():
            return _base_news(event)
        case events.LearnerSilent(version=version, since_s=since):
            return control.Warned(
                f"no word from the run's learner for {since / 60:.0f} minutes; going on with version {version}",
                "It may be down, or this machine cut off; what is sampled meanwhile is kept.",
            )
        case events.EnvelopeArrived(opened=opened):
            return control.EnvelopeArrived(opened.raw)
        case events.LedgerWanted(peer=peer, from_height=height):
            return control.LedgerWanted(peer, height)
        case events.LedgerArrived(from_height=height, entries=entries):
            return control.LedgerPage(height, entries)
        case events.PeersChanged():
            return status()
        case events.ClockOff(offset_s=offset):
            way = "behind" if offset > 0 else "ahead of"
            return control.Warned(
                f"this machine's clock is {abs(offset):.0f} s {way} its peers'; they refuse what it signs",
                "Switch on automatic time (for example: timedatectl set-ntp true).",
            )
        case events.WireMismatch(wire_version=version):
            return control.Warned(
                f"a peer of this run speaks wire version {version}",
                "If your version is the older one: pip install --upgrade p2prl",
            )
        case events.PeerBanned(peer=peer, reason=reason):
            return control.Warned(f"ignoring peer {peer[-8:]}: {reason}", "")
        case events.Equivocation():
            return control.Failed(
                "RemoteProtocolError",
                "the learner signed two different policies for one version: stopping",
                "Ask the run's operator what happened.",
            )


def _base_news(settled: events.BaseReleased) -> control.Warned:
    """What became of a base, for the person who named it."""
    if settled.matches_run is False:
        return control.Warned(
            "the base is not what this run started from: the learner signed other words. Going on without it",
            "Name the very model the run started from, unchanged.",
        )
    if settled.version is None:
        return control.Warned("the base could not be used; going on without it", "")
    if settled.saved_bytes:
        spared, took = _size_text(settled.saved_bytes), _size_text(settled.patch_bytes)
        way = f"came by {took} of patches" if settled.patch_bytes else "is the base itself"
        return control.Warned(f"the base spared {spared}: version {settled.version} {way}", "")
    return control.Warned(f"the base was not needed: no way to version {settled.version} is shorter by it", "")


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:,.1f} kB"
