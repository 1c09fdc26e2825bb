"""A role's handle on its network process: exchange messages with it, decode patches for it, restart it when it dies.

Networking runs in a separate process because a busy Python thread beside it delays every peer's messages a hundredfold
(1.2 ms to 108 ms, measured). The role's process computes. On this side one thread only moves bytes between a socket and
a queue, and another decodes patches.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import msgspec

from p2prl import errors
from p2prl.confinement.children import Launch
from p2prl.net.listen_addresses import port_of, with_port
from p2prl.net.process import control
from p2prl.net.process.control_channel import ControlChannel, Inbox
from p2prl.net.process.network_config import NEW_RELAYS_STATUS, NetworkConfig, network_program
from p2prl.net.process.patch_decoder import PatchDecoder
from p2prl.net.process.version_rebuild import resume_chain
from p2prl.protocol.kinds import Role
from p2prl.swarm import signals

log = logging.getLogger("p2prl.net")

_MAX_RESTARTS = 5
"""Restarts of the network process within `_RESTARTS_S` before the role gives up: more would not help."""

_RESTARTS_S = 3_600.0
"""One that ends now and then in a run of months is started again."""

_CLOSE_S = 2.0
"""How long `close` waits for the network process to read the remaining messages."""

_EXIT_S = 10.0
"""How long a network process may take to exit after that; then it is killed."""

_SILENT_S = 8.0
"""The network process reports every two seconds; one silent for this long has stopped."""

_RETRY_S = 0.02
"""Longest wait for messages while some of ours are still unread."""


_COUNTED = (
    *("received_from_source", "received_from_peers", "received_over_circuits", "sent", "wasted"),
    *("patch_bytes", "full_bytes", "version_bytes", "saved_bytes"),
)
"""Figures of a status that a network process counts from its own start, and a role from its."""


class _Wake:
    """Put into the inbox to end a poll."""


class NetworkHandle:
    """Owns the network process."""

    def __init__(
        self,
        config: NetworkConfig,
        *,
        on_start: Callable[[NetworkHandle], None] | None = None,
        launch: Launch | None = None,
    ) -> None:
        """`on_start` runs after every (re)start and resends what a fresh node needs.

        `launch` starts the process, where this one may start none: confined to a worker's folder (`network_program`).
        """
        self._launch = launch or network_program().start
        self._config = config
        self._on_start = on_start
        self._ended_at: deque[float] = deque(maxlen=_MAX_RESTARTS + 1)
        """When the newest processes ended that were to go on."""
        self._closing = False
        self._suspended = False
        self._inbox: Inbox[_Wake | None] = Inbox()
        self._last_status: control.Status | None = None
        self._counted_before = dict.fromkeys(_COUNTED, 0)
        self._heard_at = time.monotonic()
        self._decoder = PatchDecoder(self._on_decoded)
        if config.node.rebuilds and config.node.role is not Role.LEARNER:
            resume_chain(config.blob_dir)
        self.addresses: tuple[str, ...] = ()
        self._start()

    @property
    def pid(self) -> int:
        """Process id of the network process."""
        return self._process.pid

    @property
    def status(self) -> control.Status | None:
        """The last status received, if any."""
        return self._last_status

    def remember_manifest(self, raw: bytes) -> None:
        """Use this run manifest when the network process restarts."""
        self._config = replace(self._config, manifest=raw)

    def send(self, message: control.ToNetwork) -> None:
        """Send a message without ever waiting for the network process to read it.

        A process that dies loses it; `on_start` resends the state to the next one. A stalled network never stalls its
        role.
        """
        if isinstance(message, signals.StartFrom):  # it is not sent again, so a restarted process must not wait for it
            self._config = replace(self._config, node=replace(self._config.node, awaits_base=False))
        elif isinstance(message, signals.RunAccepted):  # nor is this
            node = replace(self._config.node, awaits_consent=False, disk_bytes=message.disk_bytes)
            self._config = replace(self._config, node=node)
        elif isinstance(message, control.SetUploadCaps):
            relay = replace(self._config.node.relay, upload_bytes_s=message.bytes_s)
            node = replace(self._config.node, relay=relay)
            self._config = replace(self._config, node=node, monthly_bytes=message.monthly_bytes)
        self._channel.send(message)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """Messages that arrived, waiting up to `timeout_s` for the first. Restarts a dead network process.

        Raises the network's own error when it cannot continue (port in use, disk full, no peer reachable).
        """
        messages: list[control.FromNetwork] = []
        self._channel.flush()
        if self._channel.has_waiting:
            timeout_s = min(timeout_s, _RETRY_S)
        try:
            message = self._inbox.get(timeout_s)
            while True:
                if message is None:
                    self._restart()
                elif isinstance(message, _Wake):
                    pass
                elif isinstance(message, control.Failed):
                    _raise(message)
                elif isinstance(message, signals.PublishRefused) and self._config.node.role is not Role.VOLUNTEER:
                    raise errors.LocalProtocolError(message.reason)  # a volunteer's spool may hold anything
                else:
                    messages.append(self._noted(message))
                message = self._inbox.get()
        except queue.Empty:
            return messages or self._presume_alone()

    def wake(self) -> None:
        self._inbox.put(_Wake())

    def suspend(self) -> None:
        """End the network process."""
        if self._suspended:
            return
        self._suspended = True
        self._end_process()
        for message in self._unread():
            if isinstance(message, control.Status):
                self._noted(message)
            elif message is not None:  # the process's end
                self._inbox.put(message)
        self._count_anew()
        if (last := self._last_status) is not None:
            left = msgspec.structs.replace(last, peers=(), resident_bytes=0, daemon_bytes=0)
            self._inbox.put(msgspec.structs.replace(left, **dict.fromkeys(_COUNTED, 0)))

    def resume(self) -> None:
        """Start another network process."""
        if not self._suspended:
            return
        for message in self._unread():
            if message is not None:  # the end of the process before
                self._inbox.put(message)
        self._suspended = False
        self._start()

    def close(self) -> None:
        """Stop the network process and wait for it."""
        self._closing = True
        self._end_process()
        self._decoder.close(timeout_s=_CLOSE_S)

    def _unread(self) -> list[control.FromNetwork | _Wake | None]:
        """Take all messages out of the inbox."""
        return [self._inbox.get() for _ in range(len(self._inbox))]

    def _count_anew(self) -> None:
        """The next process counts from 0: keep what was counted so far."""
        if self._last_status is not None:
            self._counted_before = {name: getattr(self._last_status, name) for name in _COUNTED}

    def _end_process(self) -> None:
        self._channel.hang_up(timeout_s=_CLOSE_S)
        try:
            self._process.wait(_EXIT_S)
        except TimeoutError:
            self._process.kill()
            self._process.wait()
        self._channel.join(5.0)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._launch(theirs.fileno())
        self._channel = ControlChannel(ours, self._on_message)
        self.send(control.Start(self._config, seed=int.from_bytes(os.urandom(7), "little")))
        if self._on_start is not None:
            self._on_start(self)

    def _restart(self) -> None:
        if self._closing or self._suspended:
            return
        code = self._process.wait()
        if code != NEW_RELAYS_STATUS:
            self._ended_at.append(time.monotonic())
        if len(self._ended_at) > _MAX_RESTARTS and self._ended_at[-1] - self._ended_at[0] < _RESTARTS_S:
            raise errors.TransportError(
                f"the network process ended {len(self._ended_at)} times (last exit status {code})",
                remedy="Start it again; if this repeats, report the messages printed above.",
            )
        if code == NEW_RELAYS_STATUS:
            log.info("the relays have gone; the network starts again with others")
        else:
            log.warning("the network process ended (status %s); restarting it", code)
        self._channel.abandon()
        self._count_anew()
        self._start()

    def _presume_alone(self) -> list[control.FromNetwork]:
        """A stopped network process has no links: a role must not wait for a learner it cannot reach."""
        last = self._last_status
        if last is None or not last.peers or time.monotonic() - self._heard_at < _SILENT_S:
            return []
        self._last_status = msgspec.structs.replace(last, peers=())
        return [self._last_status]

    def _noted(self, message: control.FromNetwork) -> control.FromNetwork:
        """Remember what concerns this handle. The message, with what earlier processes have counted."""
        self._heard_at = time.monotonic()
        match message:
            case control.NetworkUp(addresses=addresses):
                self.addresses = addresses
                # A restarted node must listen where other peers expect it.
                self._config = replace(self._config, listen=with_port(self._config.listen, port_of(addresses)))
            case control.Status():
                totals = {name: getattr(message, name) + before for name, before in self._counted_before.items()}
                message = self._last_status = msgspec.structs.replace(message, **totals)
            case control.RunKnown(manifest=raw):
                self.remember_manifest(raw)
            case _:
                pass
        return message

    def _on_message(self, message: control.FromNetwork | None) -> None:
        """Runs on the channel's thread."""
        if isinstance(message, control.PatchesReady | control.WeightsReleased):
            self._decoder.take(message)  # at once: the role may be in a batch that takes minutes
        elif isinstance(message, control.Logged):
            sys.stderr.write(f"{message.line}\n")  # a live panel stands in for it, and draws itself below the line
        else:
            self._inbox.put(message)

    def _on_decoded(self, answer: signals.VersionRebuilt, error_text: str) -> None:
        """Runs on the decoder's thread."""
        if error_text:
            self._inbox.put(control.Warned(f"patches could not be used, trying another route: {error_text}", ""))
        self.send(answer)


def _raise(failed: control.Failed) -> None:
    kind = getattr(errors, failed.error, errors.P2PRLError)
    raise kind(failed.message, remedy=failed.remedy)
