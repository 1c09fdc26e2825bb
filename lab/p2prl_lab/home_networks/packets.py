"""IP packets of TCP and UDP as a line carries them: addresses, ports and the size of their payload. Pure."""

from __future__ import annotations

from dataclasses import dataclass

TCP, UDP = 6, 17

Endpoint = tuple[bytes, int]
"""Address, 4 or 16 bytes, and port."""

_IPV4_HEADER, _IPV6_HEADER = 20, 40
_TCP_HEADER, _UDP_HEADER = 20, 8
_FRAGMENT_MASK = 0x3FFF
"""More-fragments flag and offset. Devices of the lab have one MTU, so nothing is fragmented."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet; `data` is the whole of it."""

    data: bytes
    protocol: int
    source: Endpoint
    target: Endpoint
    payload_bytes: int


def read_packet(data: bytes) -> Packet | None:
    """The packet, or None for one that is neither TCP nor UDP, is cut short, or is a fragment."""
    if not data:
        return None
    version = data[0] >> 4
    if version == 4 and len(data) >= _IPV4_HEADER:
        start, protocol = 4 * (data[0] & 15), data[9]
        source, target = data[12:16], data[16:20]
        if start < _IPV4_HEADER or int.from_bytes(data[6:8], "big") & _FRAGMENT_MASK:
            return None
    elif version == 6 and len(data) >= _IPV6_HEADER:
        start, protocol = _IPV6_HEADER, data[6]
        source, target = data[8:24], data[24:40]
    else:
        return None
    if protocol == TCP and len(data) >= start + _TCP_HEADER:
        header = 4 * (data[start + 12] >> 4)
    elif protocol == UDP and len(data) >= start + _UDP_HEADER:
        header = _UDP_HEADER
    else:
        return None
    ports = int.from_bytes(data[start : start + 4], "big")
    payload_bytes = max(0, len(data) - start - header)
    return Packet(data, protocol, (source, ports >> 16), (target, ports & 0xFFFF), payload_bytes)
