"""Bind the port of a board or an index before anything else is started or imported."""

from __future__ import annotations

import errno
import socket

from p2prl.errors import MachineError

_OTHER = "Choose another one with {option}."
_REMEDIES = {
    errno.EADDRINUSE: "Choose another one with {option}, or stop the program that uses it.",
    errno.EACCES: "Choose one from 1024 on with {option}: lower ones are the system's.",
}


def bind(host: str, port: int, *, host_option: str = "--host", port_option: str = "--port") -> socket.socket:
    """A listening socket on host and port, TCP over IPv4 or IPv6; port 0 picks a free one.

    The options are those of the command that set them.

    Raises `MachineError` when the port is taken or not allowed, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
            raise MachineError(
                f"this machine has no address {host}",
                remedy=f"Give one of its own with {host_option}: 127.0.0.1 for this machine alone, 0.0.0.0 for all.",
            ) from error
        remedy = _REMEDIES.get(error.errno or 0, _OTHER).format(option=port_option)
        raise MachineError(f"cannot use port {port} on {host}: {error.strerror}", remedy=remedy) from error
    return listener
