"""IP packets of TCP and UDP as a router sees them: addresses, ports, and their rewriting with checksums. Pure.

Checksums are updated by the difference (RFC 1624), so a packet damaged on the way stays damaged.
"""

from __future__ import annotations

from dataclasses import dataclass

TCP, UDP = 6, 17

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
"""Flags of TCP."""

Endpoint = tuple[bytes, int]
"""Address, 4 or 16 bytes, and port."""

_IPV4_HEADER, _IPV6_HEADER = 20, 40
_TCP_HEADER, _UDP_HEADER = 20, 8
_TCP_CHECKSUM, _UDP_CHECKSUM = 16, 6
_FRAGMENT_MASK = 0x3FFF
"""More-fragments flag and offset. The lab's lines all have one MTU, so nothing is fragmented."""


@dataclass(slots=True)
class Packet:
    """One packet; `data` is the whole of it and changes when an endpoint is rewritten."""

    data: bytearray
    protocol: int
    source: Endpoint
    target: Endpoint
    flags: int
    """Flags of TCP; 0 of UDP."""
    payload_bytes: int
    _transport: int
    """Where the header of TCP or UDP begins."""

    def set_source(self, endpoint: Endpoint) -> None:
        """Rewrite the sender."""
        self._rewrite(self.source, endpoint, address_at=12 if len(endpoint[0]) == 4 else 8, port_at=0)
        self.source = endpoint

    def set_target(self, endpoint: Endpoint) -> None:
        """Rewrite the receiver."""
        self._rewrite(self.target, endpoint, address_at=16 if len(endpoint[0]) == 4 else 24, port_at=2)
        self.target = endpoint

    def _rewrite(self, old: Endpoint, new: Endpoint, *, address_at: int, port_at: int) -> None:
        if old == new:
            return
        data, start = self.data, self._transport
        data[address_at : address_at + len(new[0])] = new[0]
        data[start + port_at : start + port_at + 2] = new[1].to_bytes(2, "big")
        moved = _sum(new[0]) - _sum(old[0])
        if len(new[0]) == 4:
            _adjust(data, 10, moved)
        if self.protocol == TCP:
            _adjust(data, start + _TCP_CHECKSUM, moved + new[1] - old[1])
        elif data[start + _UDP_CHECKSUM] or data[start + _UDP_CHECKSUM + 1]:  # 0 means that there is none
            _adjust(data, start + _UDP_CHECKSUM, moved + new[1] - old[1], never_zero=True)


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
    flags = 0
    if protocol == TCP and len(data) >= start + _TCP_HEADER:
        flags = data[start + 13]
        header = 4 * (data[start + 12] >> 4)
    elif protocol == UDP and len(data) >= start + _UDP_HEADER:
        header = _UDP_HEADER
    else:
        return None
    ports = int.from_bytes(data[start : start + 4], "big")
    return Packet(
        bytearray(data),
        protocol,
        (bytes(source), ports >> 16),
        (bytes(target), ports & 0xFFFF),
        flags,
        max(0, len(data) - start - header),
        start,
    )


def udp_packet(source: Endpoint, target: Endpoint, payload: bytes) -> bytes:
    """A UDP packet over IPv4, without a checksum of its payload (RFC 768 permits that)."""
    size = _IPV4_HEADER + _UDP_HEADER + len(payload)
    header = bytearray(b"\x45\0" + size.to_bytes(2, "big") + b"\0\0\x40\0\x40\x11\0\0" + source[0] + target[0])
    header[10:12] = (~_fold(_sum(header)) & 0xFFFF).to_bytes(2, "big")
    ports = source[1].to_bytes(2, "big") + target[1].to_bytes(2, "big")
    return bytes(header) + ports + (_UDP_HEADER + len(payload)).to_bytes(2, "big") + b"\0\0" + payload


def _sum(data: bytes | bytearray) -> int:
    """The sum of 16-bit words, folded: 2^16 is 1 in one's complement."""
    return int.from_bytes(data, "big") % 0xFFFF


def _fold(total: int) -> int:
    return total % 0xFFFF


def _adjust(data: bytearray, at: int, difference: int, *, never_zero: bool = False) -> None:
    """Add a difference of the sum to a checksum: HC' = ~(~HC + difference), RFC 1624."""
    folded = _fold((~int.from_bytes(data[at : at + 2], "big") & 0xFFFF) + difference)
    checksum = ~folded & 0xFFFF
    if checksum == 0xFFFF and not never_zero:
        checksum = 0  # both are zero in one's complement; UDP sends 0xffff, since 0 means no checksum
    data[at : at + 2] = checksum.to_bytes(2, "big")
