"""Messages of AutoNAT by Google's protobuf, from the published definition: what every libp2p host reads and writes."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_BYTES, _MESSAGE, _INT32, _STRING = 12, 11, 5, 9
_FIELDS: dict[str, list[tuple[str, int, int, str, bool]]] = {
    "PeerInfo": [("id", 1, _BYTES, "", False), ("addrs", 2, _BYTES, "", True)],
    "Dial": [("peer", 1, _MESSAGE, ".autonat.PeerInfo", False)],
    "DialResponse": [
        ("status", 1, _INT32, "", False),  # an enum there: the same bytes
        ("statusText", 2, _STRING, "", False),
        ("addr", 3, _BYTES, "", False),
    ],
    "Message": [
        ("type", 1, _INT32, "", False),
        ("dial", 2, _MESSAGE, ".autonat.Dial", False),
        ("dialResponse", 3, _MESSAGE, ".autonat.DialResponse", False),
    ],
}


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="p2prl_test_autonat.proto", package="autonat", syntax="proto2")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of, repeated in fields:
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            added.type = kind  # type: ignore[assignment]
            if of:
                added.type_name = of
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("autonat.Message"))


_Message = _message_class()


def question(peer: bytes, *addresses: bytes) -> bytes:
    """A request to be dialed at binary multiaddrs."""
    message = _Message(type=0)
    message.dial.peer.id = peer
    message.dial.peer.addrs.extend(addresses)
    encoded: bytes = message.SerializeToString()
    return encoded


def parsed_answer(data: bytes) -> tuple[int, bytes]:
    """Status and address of an answer."""
    message = _Message.FromString(data)
    assert message.type == 1
    return message.dialResponse.status, message.dialResponse.addr
