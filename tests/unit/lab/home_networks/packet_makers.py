"""Packets for tests, with right checksums."""

from __future__ import annotations

import ipaddress

from p2prl_lab.home_networks.packets import TCP, UDP, Endpoint


def endpoint(address: str, port: int) -> Endpoint:
    """An endpoint from text."""
    return ipaddress.ip_address(address).packed, port


def raw_packet(
    source: Endpoint, target: Endpoint, payload: bytes = b"", *, protocol: int = TCP, flags: int = 0x10
) -> bytes:
    """A whole packet with right checksums."""
    ports = source[1].to_bytes(2, "big") + target[1].to_bytes(2, "big")
    if protocol == TCP:
        segment = ports + bytes(8) + bytes((0x50, flags)) + b"\xff\xff" + b"\0\0" + b"\0\0" + payload
        at = 16
    else:
        segment = ports + (8 + len(payload)).to_bytes(2, "big") + b"\0\0" + payload
        at = 6
    pseudo = source[0] + target[0] + len(segment).to_bytes(4, "big") + protocol.to_bytes(4, "big")
    checksum = internet_checksum(pseudo + segment)
    if protocol == UDP and checksum == 0:
        checksum = 0xFFFF
    segment = segment[:at] + checksum.to_bytes(2, "big") + segment[at + 2 :]
    if len(source[0]) == 16:
        return b"\x60\0\0\0" + len(segment).to_bytes(2, "big") + bytes((protocol, 64)) + source[0] + target[0] + segment
    head = b"\x45\0" + (20 + len(segment)).to_bytes(2, "big") + bytes(4) + bytes((64, protocol))
    tail = source[0] + target[0]
    return head + internet_checksum(head + b"\0\0" + tail).to_bytes(2, "big") + tail + segment


def internet_checksum(data: bytes) -> int:
    """RFC 1071; 0 over data that includes a right checksum."""
    padded = data + b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(padded[i : i + 2], "big") for i in range(0, len(padded), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
