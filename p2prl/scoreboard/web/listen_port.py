"""Bind the board's port before anything else is started or imported."""

from __future__ import annotations

import socket

from p2prl.errors import MachineError


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on host and port, TCP over IPv4 or IPv6; port 0 picks a free one.

    Raises `MachineError` when the port is taken or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        raise MachineError(
            f"the board cannot use port {port} on {host}: {error}",
            remedy="Choose another one with --port, or stop the program that uses it.",
        ) from error
    return listener
