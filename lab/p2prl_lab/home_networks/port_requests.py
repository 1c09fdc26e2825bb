"""NAT-PMP as a home router answers it (RFC 6886): its outside address, and ports for any device that asks. Pure."""

from __future__ import annotations

from p2prl_lab.home_networks.nat import Nat
from p2prl_lab.home_networks.packets import TCP, UDP, Packet, udp_packet

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


def answer_port_request(packet: Packet, nat: Nat, now: float, *, port: int = PORT) -> bytes | None:
    """The router's answer to a packet sent to it, or None when that is no request to this port."""
    request = bytes(packet.data[-packet.payload_bytes :]) if packet.payload_bytes else b""
    if packet.protocol != UDP or packet.target[1] != port or len(request) < 2:
        return None
    version, opcode = request[0], request[1]
    if version != _VERSION or opcode not in _OPCODES:
        return None
    head = bytes((_VERSION, _ANSWER + opcode)) + b"\0\0" + (int(now) & 0xFFFFFFFF).to_bytes(4, "big")
    if opcode == 0:
        return udp_packet(packet.target, packet.source, head + nat.outside)
    if len(request) < _REQUEST_BYTES:
        return None
    inside, wanted = request[4:6], int.from_bytes(request[6:8], "big")
    lifetime = request[8:12]
    inside_port = int.from_bytes(inside, "big")
    if int.from_bytes(lifetime, "big") == 0:  # a deletion: granted, and without effect on the lab
        return udp_packet(packet.target, packet.source, head + inside + b"\0\0" + lifetime)
    opened = nat.open_port(_OPCODES[opcode], (packet.source[0], inside_port), wanted or inside_port, now)
    return udp_packet(packet.target, packet.source, head + inside + opened.to_bytes(2, "big") + lifetime)
