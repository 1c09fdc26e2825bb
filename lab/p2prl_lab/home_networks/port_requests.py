"""NAT-PMP as a home router answers it (RFC 6886): its outside address, and ports for any device that asks. Pure."""

from __future__ import annotations

import ipaddress

from p2prl_lab.home_networks.packets import TCP, UDP

PORT = 5351

GATEWAY_PORT = 5352
"""Where a router that machines ask by SOAP takes the same requests, from its own `gateway_device` alone."""

ANSWER_BYTES = 16
"""The longest answer."""

_VERSION = 0
_OPCODES = {0: 0, 1: UDP, 2: TCP}
"""Protocol of each request; 0 asks for the address."""
_ANSWER = 128
_REQUEST_BYTES = 12


def address_request() -> bytes:
    """Asks for the outside address."""
    return bytes((_VERSION, 0))


def port_request(protocol: int, inside: int, wanted: int, *, lifetime_s: int = 3_600) -> bytes:
    """Asks for an outside port; `protocol` is `TCP` or `UDP`."""
    opcode = next(code for code, asked in _OPCODES.items() if code and asked == protocol)
    ports = inside.to_bytes(2, "big") + wanted.to_bytes(2, "big")
    return bytes((_VERSION, opcode, 0, 0)) + ports + lifetime_s.to_bytes(4, "big")


class PortTable:
    """Outside ports that one router has opened."""

    def __init__(self) -> None:
        self.opened: dict[tuple[int, int], tuple[str, int]] = {}
        """Inside endpoint by protocol and outside port."""

    def answer(self, request: bytes, client: str, outside: str, now: float) -> bytes:
        """The router's answer to a client's request, or nothing when it is none; `outside` is the router's address."""
        if len(request) < 2 or request[0] != _VERSION or request[1] not in _OPCODES:
            return b""
        opcode = request[1]
        head = bytes((_VERSION, _ANSWER + opcode)) + b"\0\0" + (int(now) & 0xFFFFFFFF).to_bytes(4, "big")
        if opcode == 0:
            return head + ipaddress.IPv4Address(outside).packed
        if len(request) < _REQUEST_BYTES:
            return b""
        inside, wanted = int.from_bytes(request[4:6], "big"), int.from_bytes(request[6:8], "big")
        lifetime = request[8:12]
        granted = 0
        if int.from_bytes(lifetime, "big"):  # else a deletion: granted, and without effect on the lab
            granted = self._open(_OPCODES[opcode], (client, inside), wanted or inside)
        return head + request[4:6] + granted.to_bytes(2, "big") + lifetime

    def _open(self, protocol: int, inside: tuple[str, int], wanted: int) -> int:
        for (used, port), endpoint in self.opened.items():
            if used == protocol and endpoint == inside:
                return port
        port = wanted
        while (protocol, port) in self.opened:
            port = 1_024 + (port + 1) % 64_000
        self.opened[protocol, port] = inside
        return port
