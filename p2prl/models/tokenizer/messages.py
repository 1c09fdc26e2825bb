"""Messages between a worker and the confined process of its run's tokenizer. Pure.

The process runs a stranger's rules, so its replies are read as numbers and texts of bounded length, never parsed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from p2prl.errors import RemoteProtocolError

HEADER = struct.Struct("<cI")
"""Kind and length of what follows."""

BUILD, ENCODE, ENCODE_PLAIN, DECODE = b"B", b"E", b"P", b"D"
"""Kinds of request: read the rules; texts to tokens with special tokens and without; tokens to text."""

DONE, REFUSED = b"O", b"R"
"""Kinds of reply."""

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""A reply: the text of the longest completion, all its tokens 512 spaces, has 17 MB."""

MAX_REASON_BYTES = 400
"""A reply that refuses, which is shown to the machine's owner."""

_COUNT = struct.Struct("<I")


def message(kind: bytes, payload: bytes) -> bytes:
    """A message of either side."""
    return HEADER.pack(kind, len(payload)) + payload


def build_payload(special: dict[str, str], vocabulary: int, rules: bytes, hidden: Sequence[str] = ()) -> bytes:
    """Special tokens, the number of the model's token ids, a tokenizer.json, and the tokens to hide."""
    head = json.dumps([special, vocabulary, list(hidden)]).encode()
    return _COUNT.pack(len(head)) + head + rules


def read_build(payload: bytes) -> tuple[dict[str, str], int, memoryview, frozenset[str]]:
    """What `build_payload` packed."""
    (length,) = _COUNT.unpack_from(payload)
    head: Any = json.loads(payload[_COUNT.size : _COUNT.size + length])
    return head[0], head[1], memoryview(payload)[_COUNT.size + length :], frozenset(head[2])


def ready_payload(end: int | None, layers: Sequence[str]) -> bytes:
    """The reply to `BUILD`: the token that ends a text, and the layers that confine the process."""
    return _COUNT.pack(0 if end is None else end + 1) + ",".join(layers).encode()


def read_ready(payload: bytes) -> tuple[int | None, tuple[str, ...]]:
    """What `ready_payload` packed. `RemoteProtocolError` for anything shorter."""
    if len(payload) < _COUNT.size:
        raise RemoteProtocolError("the run's tokenizer did not start")
    (end,) = _COUNT.unpack_from(payload)
    names = payload[_COUNT.size :].decode("ascii", "replace").split(",")
    return (end - 1 if end else None), tuple(name for name in names if name)


def texts_payload(texts: Sequence[str]) -> bytes:
    """Texts to encode."""
    return json.dumps(list(texts)).encode()


def read_texts(payload: bytes) -> list[str]:
    """What `texts_payload` packed."""
    texts: list[str] = json.loads(payload)
    return texts


def ids_payload(token_ids: Sequence[int]) -> bytes:
    """Tokens to decode."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def read_ids(payload: bytes) -> list[int]:
    """What `ids_payload` packed."""
    return list(struct.unpack(f"<{len(payload) // 4}I", payload))


def rows_payload(rows: Sequence[Sequence[int]]) -> bytes:
    """The tokens of each text."""
    return b"".join(_COUNT.pack(len(row)) + ids_payload(row) for row in rows)


def read_rows(payload: bytes, *, count: int) -> list[list[int]]:
    """The tokens of `count` texts. `RemoteProtocolError` for anything else."""
    rows, at = [], 0
    for _ in range(count):
        if len(payload) - at < _COUNT.size:
            raise RemoteProtocolError("the run's tokenizer gave no tokens")
        (length,) = _COUNT.unpack_from(payload, at)
        at += _COUNT.size
        if len(payload) - at < 4 * length:
            raise RemoteProtocolError("the run's tokenizer gave no tokens")
        rows.append(read_ids(payload[at : at + 4 * length]))
        at += 4 * length
    if at != len(payload):
        raise RemoteProtocolError("the run's tokenizer gave too many tokens")
    return rows


def read_header(data: bytes) -> tuple[bytes, int]:
    """Kind and length of a reply. `RemoteProtocolError` for one that no honest process sends."""
    kind, length = HEADER.unpack(data)
    most = {DONE: MAX_REPLY_BYTES, REFUSED: MAX_REASON_BYTES}.get(kind, -1)
    if length > most:
        raise RemoteProtocolError("the run's tokenizer made a reply that is too long")
    return kind, length


def reason_payload(error: BaseException) -> bytes:
    """The text of a refusal."""
    return str(error).encode("ascii", "replace")[:MAX_REASON_BYTES]


def read_reason(payload: bytes) -> str:
    """A refusal as it may be shown."""
    return "".join(c if c.isprintable() else "?" for c in payload.decode("ascii", "replace"))
