"""`p2prl learn --sample`: a volunteer beside the learner, on this machine, started again when it fails.

It is `p2prl join` in a process of its own, confined like any other, and its groups are checked like those of strangers.
It has a seat in this user's home, so its limits and its owner are those of `join`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from p2prl.cli.commands.join_several_devices import DeviceGroup, devices_of
from p2prl.cli.views.console import say
from p2prl.config.worker_folder import default_home
from p2prl.errors import ConfigError
from p2prl.exit_codes import INTERRUPTED, NOT_AGAIN
from p2prl.net.listen_addresses import LOOPBACK_LISTEN

NAME = "local sampler"
"""As the learner's owner reads it."""

_AGAIN_S = (5.0, 300.0)
"""First and longest pause before a new start; each is twice the last."""

_LOOK_S = 0.5


class LocalSampler:
    """A volunteer on one device."""

    def __init__(self, device: str) -> None:
        """No volunteer for an empty `device`; `ConfigError` when it names more than one."""
        if device and len(devices_of(device)) != 1:
            raise ConfigError(
                f"--sample names {device[:40]!r}, and the learner has one sampler",
                remedy="Name one device, and start p2prl join for the others.",
            )
        self._device = device
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def ended_at_last(self) -> Iterator[None]:
        """End it with this block; what it has not delivered is kept for its next start."""
        try:
            yield
        finally:
            self._stop.set()
            if self._thread is not None:
                self._thread.join()

    def start(self, link: str) -> None:
        """Join the run of this link, once."""
        if self._device and self._thread is None:
            self._thread = threading.Thread(target=self._keep_up, args=(link,), name="local-sampler")
            self._thread.start()

    def _keep_up(self, link: str) -> None:
        # Nobody else needs to dial it: what others fetch from it they can fetch from the learner.
        program = [sys.executable, "-m", "p2prl", "join", link, "--listen", *LOOPBACK_LISTEN, "--events", "--json"]
        pause_s, longest_s = _AGAIN_S
        while not self._stop.is_set():
            code = self._run(program)
            if self._stop.is_set() or code in (0, INTERRUPTED, *NOT_AGAIN):
                return
            say(f"The {NAME} starts again in {pause_s:.0f} s.")
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def _run(self, program: list[str]) -> int:
        """Run the volunteer until it ends, or is to end. Returns its exit code."""
        group = DeviceGroup(program, [self._device], default_home(), on_event=lambda _: None, beside=NAME)
        with group.ended_at_last():
            for _ in group.started():
                pass
            while group.is_alive() and not self._stop.is_set():
                group.wait(_LOOK_S)
        return group.workers[0].process.returncode
