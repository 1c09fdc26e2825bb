"""The process that carries the lab's packets: TUN devices and a control socket around `Internet`.

It is a process of its own, so that a busy lab does not delay packets. Control messages are JSON lines: a list of the
name of a command and its arguments, answered by one line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from p2prl_lab.home_networks.internet import Internet
from p2prl_lab.home_networks.namespaces import Machine
from p2prl_lab.home_networks.sites import MTU

_BATCH = 64
"""Packets read from one device before the others get their turn."""
_IDLE_S = 1.0
_ANSWER_S = 10.0


class RouterControl:
    """The lab's end of a router's control socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_ANSWER_S)
        self._file = connection.makefile("rwb")

    def cut(self, name: str) -> None:
        """Take a site's line down."""
        self._ask("cut", name)

    def heal(self, name: str) -> None:
        """Put a site's line up."""
        self._ask("heal", name)

    def move(self, name: str) -> tuple[str, ...]:
        """Give a site another public address; returns the addresses its machine has to take over."""
        return tuple(self._ask("move", name))

    def traffic(self) -> list[dict[str, Any]]:
        """Rows of traffic: `sender`, `receiver`, and the fields of `internet.Traffic`."""
        rows: list[dict[str, Any]] = self._ask("traffic")
        return rows

    def forget_traffic(self) -> None:
        """Count from nothing again."""
        self._ask("forget_traffic")

    def untranslated(self) -> dict[str, int]:
        """Packets that left each site with an inside address, since the start."""
        return dict(self._ask("untranslated"))

    def _ask(self, *message: str) -> Any:
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()
        return json.loads(self._file.readline())


@contextlib.contextmanager
def running_router(internet: Internet, machines: Mapping[str, Machine]) -> Iterator[RouterControl]:
    """A router process while this block runs. Times in its answers are those of `time.monotonic`."""
    ours, theirs = socket.socketpair()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(internet, machines, theirs, ours))
    process.start()
    theirs.close()
    try:
        yield RouterControl(ours)
    finally:
        process.kill()
        process.join()
        ours.close()


def _serve(internet: Internet, machines: Mapping[str, Machine], control: socket.socket, other: socket.socket) -> None:
    """Carry packets until killed, or until the lab's end of the control socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the lab, which then ends this process
    other.close()
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)  # a lab run at low priority would otherwise have slow lines
    commands = control.makefile("rwb")
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    for machine in machines.values():
        selector.register(machine.tun, selectors.EVENT_READ, machine.name)
    while True:
        deadline = internet.next_deadline()
        wait_s = _IDLE_S if deadline is None else max(0.0, deadline - time.monotonic())
        for key, _ in selector.select(wait_s):
            if key.data is None:
                line = commands.readline()
                if not line:
                    return
                commands.write(json.dumps(_carry_out(internet, json.loads(line))).encode() + b"\n")
                commands.flush()
            else:
                _read_device(internet, machines, key.data)
        for name, data in internet.due(time.monotonic()):
            _write(machines[name], data)


def _read_device(internet: Internet, machines: Mapping[str, Machine], name: str) -> None:
    tun = machines[name].tun
    for _ in range(_BATCH):
        try:
            data = os.read(tun, MTU)
        except BlockingIOError:
            return
        internet.receive(name, data, time.monotonic())


def _write(machine: Machine, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full queue or a device that is down loses packets, as networks do
        os.write(machine.tun, data)


def _carry_out(internet: Internet, message: list[str]) -> Any:
    name, *arguments = message
    if name == "traffic":
        return [
            {"sender": sender, "receiver": receiver, **dataclasses.asdict(traffic)}
            for (sender, receiver), traffic in internet.traffic.items()
        ]
    commands: dict[str, Callable[..., Any]] = {
        "cut": internet.cut,
        "heal": internet.heal,
        "move": internet.move,
        "forget_traffic": internet.forget_traffic,
        "untranslated": lambda: internet.untranslated,
    }
    return commands[name](*arguments)
