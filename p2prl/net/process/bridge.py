"""Bridge between a node and its role: events become control messages, with paths and sentences for people.

The network process uses it over a socket, the simulator in one thread; a role cannot tell the difference. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from p2prl import errors
from p2prl.net.process import control
from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.wire_codec import encode
from p2prl.swarm import events, signals

LEARNER_ELSEWHERE = control.Failed(
    "IdentityError",
    "another machine runs this learner: this one stops, so that nothing is signed twice",
    errors.LEARNER_ELSEWHERE_REMEDY,
)
"""For a learner whose key another machine has: a copy of its folder, or its promoted standby learner."""


class NetworkPort(Protocol):
    """A role's side of the network: `p2prl.net.process.handle.NetworkHandle`, or the simulator's stand-in."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of this node; empty until it is up."""
        ...

    @property
    def status(self) -> control.Status | None:
        """The last status received, if any."""
        ...

    def send(self, message: control.ToNetwork) -> None:
        """Hand a message to the node."""
        ...

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """Messages that arrived, waiting up to `timeout_s` for the first."""
        ...

    def wake(self) -> None:
        """End a `poll` that waits, or the next one, at once. From any thread."""
        ...

    def close(self) -> None:
        """Leave the network."""
        ...


@runtime_checkable
class Suspendable(Protocol):
    """A network that can be left for a while and joined again."""

    def suspend(self) -> None:
        """Leave the network; messages sent meanwhile are lost, and `poll` returns none."""
        ...

    def resume(self) -> None:
        """Join it again, under the same key and on the same port."""
        ...


def message_of(
    event: events.Event,
    *,
    path_of: Callable[[bytes], Path],
    group_path_of: Callable[[bytes], Path] | None = None,
    status: Callable[[], control.Status],
) -> control.FromNetwork:
    """The control message for an event. `path_of` returns a blob's path, `group_path_of` that of a group's body where
    bodies have a folder of their own, and `status` a fresh status."""
    match event:
        case signals.Report():
            return event
        case events.RunKnown(raw=raw):
            return control.RunKnown(raw)
        case events.RunRefused(reason=reason):
            return control.Failed("RefusedRunError", f"this run is refused: {reason}", errors.REFUSED_RUN_REMEDY)
        case events.FileReady(name=name, root=root):
            return control.FileReady(name, str(path_of(root)))
        case events.VersionReady(manifest=manifest, digest=policy):
            return control.VersionReady(policy, encode(manifest), str(path_of(manifest.weights.root)))
        case events.PatchesReady():
            return _order_for(event, path_of)
        case events.WeightsReleased(held=held):
            return control.WeightsReleased(held, str(path_of(bytes(DIGEST_BYTES)).parent))
        case events.BaseReleased():
            return _base_notice(event)
        case events.LearnerSilent(version=version, since_s=since):
            return control.Warned(
                f"nothing received from the run's learner for {since / 60:.0f} minutes; continuing with "
                f"version {version}",
                "It may be down, or this machine may be cut off; finished groups are kept.",
            )
        case events.EnvelopeArrived(opened=opened):
            return control.EnvelopeArrived(opened.raw)
        case events.GroupFetched(opened=opened, root=root):
            return control.GroupFetched(opened.raw, str((group_path_of or path_of)(root)))
        case events.PeersChanged():
            return status()
        case events.ClockOff(offset_s=offset):
            side = "behind" if offset > 0 else "ahead of"
            return control.Warned(
                f"this machine's clock is {abs(offset):.0f} s {side} its peers' clocks; they refuse what it signs",
                "Switch on automatic time (for example: timedatectl set-ntp true).",
            )
        case events.WireMismatch(wire_version=version):
            return control.Warned(
                f"a peer of this run speaks wire version {version}",
                "",  # the network process says more (`outdated_program`)
            )
        case events.PeerBanned(peer=peer, reason=reason):
            return control.Warned(f"ignoring peer {peer[-8:]}: {reason}", "")
        case events.Equivocation(is_own=True):
            return LEARNER_ELSEWHERE
        case events.Equivocation():
            return control.Failed(
                "RemoteProtocolError",
                "the learner signed two different policies for one version: stopping",
                "Ask the run's operator what happened.",
            )


def _order_for(event: events.PatchesReady, path_of: Callable[[bytes], Path]) -> control.PatchesReady:
    manifest = event.manifest
    return control.PatchesReady(
        digest=event.digest,
        version=manifest.version,
        weights=manifest.weights,
        weights_digest=manifest.weights_digest,
        dtype=event.dtype,
        base_version=event.base_version,
        base=event.base or b"",
        patches=event.patches,
        held=event.held,
        folder=str(path_of(manifest.weights.root).parent),
    )


def _base_notice(released: events.BaseReleased) -> control.Warned:
    """The outcome for the user who named a base model."""
    if released.matches_run is False:
        return control.Warned(
            "the base is not the model this run started from; continuing without it",
            "Name the model the run started from, unchanged.",
        )
    if released.version is None:
        return control.Warned("the base could not be used; continuing without it", "")
    if released.saved_bytes:
        saved, patches = _size_text(released.saved_bytes), _size_text(released.patch_bytes)
        route = f"took {patches} of patches" if released.patch_bytes else "is the base itself"
        return control.Warned(f"the base saved {saved}: version {released.version} {route}", "")
    return control.Warned(f"the base was not needed: it does not shorten the route to version {released.version}", "")


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:,.1f} kB"
