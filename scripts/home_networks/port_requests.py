"""NAT-PMP as a home router answers it (RFC 6886): its outside address, and ports for whoever asks. Pure."""

from __future__ import annotations

from scripts.home_networks.nat import Nat
from scripts.home_networks.packets import TCP, UDP, Packet, udp_packet

PORT = 5351

_VERSION = 0
_OPCODES = {0: 0, 1: UDP, 2: TCP}
"""Protocol of each request; 0 asks for the address."""
_ANSWER = 128
_REQUEST_BYTES = 12


def answer_port_request(packet: Packet, nat: Nat, now: float) -> bytes | None:
    """The router's answer to a packet sent to it, or None when that is no request."""
    request = bytes(packet.data[-packet.payload_bytes :]) if packet.payload_bytes else b""
    if packet.protocol != UDP or packet.target[1] != PORT or len(request) < 2:
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
    port = nat.open_port(_OPCODES[opcode], (packet.source[0], inside_port), wanted or inside_port, now)
    return udp_packet(packet.target, packet.source, head + inside + port.to_bytes(2, "big") + lifetime)
