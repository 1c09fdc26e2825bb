"""Change valid inputs: bytes anywhere, and values inside msgpack and JSON documents. Pure, given a generator."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec

from p2prl_lab.testing.fuzz.values import INTEGERS, TEXTS, any_msgpack

_REPEATS = (2, 17, 300, 5_000)
_STRUCTURE = b"[]{},:\"'\\\x00\x80\xc0\xc1\xff\xdc\xdd\xc6\x9f"


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four changes of the bytes: other bits and bytes, parts cut, repeated, inserted or exchanged."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        _CHANGES[rng.randrange(len(_CHANGES))](made, rng)
    return bytes(made)


def _flip(made: bytearray, rng: random.Random) -> None:
    if made:
        made[_place(made, rng)] ^= 1 << rng.randrange(8)


def _replace(made: bytearray, rng: random.Random) -> None:
    if made:
        made[_place(made, rng)] = rng.choice((0, 127, 128, 255, rng.randrange(256), rng.choice(_STRUCTURE)))


def _number(made: bytearray, rng: random.Random) -> None:
    """Put an interesting integer over some bytes."""
    width, order = rng.choice((2, 4, 8)), rng.choice(("little", "big"))
    place = _place(made, rng) if made else 0
    made[place : place + width] = (rng.choice(INTEGERS) & ((1 << 8 * width) - 1)).to_bytes(width, order)  # type: ignore[arg-type]


def _cut(made: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(made) + 1)
    if rng.random() < 0.5:
        del made[place:]
    else:
        del made[place : place + rng.choice((1, 2, 4, 32))]


def _insert(made: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(made) + 1)
    made[place:place] = rng.randbytes(rng.choice((1, 1, 2, 4, 40)))


def _repeat(made: bytearray, rng: random.Random) -> None:
    place, length = rng.randrange(len(made) + 1), rng.choice((1, 4, 32, 200))
    part = bytes(made[place : place + length])
    made[place:place] = part * rng.choice((1, 2, 50))


def _place(made: bytearray, rng: random.Random) -> int:
    """A place in the data, near its beginning half the time: that is where lengths and kinds are."""
    return rng.randrange(min(len(made), 64) if rng.random() < 0.5 else len(made))


_CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (_flip, _replace, _number, _cut, _insert, _repeat)


def of_msgpack(data: bytes, rng: random.Random) -> bytes:
    """Change some values inside a msgpack document, which stays one; bytes that are none are changed as bytes."""
    try:
        document = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return of_bytes(data, rng)
    for _ in range(rng.randint(1, 3)):
        document = _changed(document, rng, any_msgpack)
    try:
        return msgspec.msgpack.encode(document)
    except (OverflowError, RecursionError):
        return of_bytes(data, rng)


def of_json(data: bytes, rng: random.Random) -> bytes:
    """The same for JSON. Numbers that JSON has none of are written as Python does."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return of_bytes(data, rng)
    for _ in range(rng.randint(1, 3)):
        document = _changed(document, rng, _any_json)
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _any_json(rng: random.Random) -> Any:
    deep: list[Any] = []
    for _ in range(rng.choice((2, 12, 200))):
        deep = [deep]
    return rng.choice(
        (None, True, False, 0, -1, 1, 2, 3, 1e308, float("nan"), float("inf"), rng.choice(INTEGERS), 10**400,
         rng.choice(TEXTS), rng.choice(TEXTS) * 3, "\ud800", [], {}, deep, {"type": "Sequence"}, {"": None}),
    )  # fmt: skip


def _changed(document: Any, rng: random.Random, scalar: Callable[[random.Random], Any]) -> Any:
    """A copy of the document with one node replaced, dropped, repeated, or moved. Shared parts stay shared."""
    if not isinstance(document, list | dict) or not document or rng.random() < 0.02:
        return _scalar_near(document, rng, scalar)
    if isinstance(document, list):
        made = list(document)
        place = rng.randrange(len(made))
        choice = rng.random()
        if choice < 0.75:
            made[place] = _changed(made[place], rng, scalar)
        elif choice < 0.83:
            del made[place]
        elif choice < 0.93:
            made[place:place] = [made[place]] * (rng.choice(_REPEATS) if rng.random() < 0.1 else 1)
        else:
            made.append(scalar(rng))
        return made
    key = rng.choice(list(document))
    made_dict, choice = dict(document), rng.random()
    if choice < 0.8:
        made_dict[key] = _changed(document[key], rng, scalar)
    elif choice < 0.88:
        del made_dict[key]
    else:
        made_dict[rng.choice((*TEXTS, str(key) + "_", "type"))] = rng.choice(list(document.values()))
    return made_dict


def _scalar_near(value: Any, rng: random.Random, scalar: Callable[[random.Random], Any]) -> Any:
    """Another value, of the same type half the time."""
    if rng.random() < 0.5:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return rng.choice((value + 1, value - 1, -value, value * 2, *INTEGERS[:8]))
        if isinstance(value, float):
            return rng.choice((value * 2, -value, value + 1e-3, float("nan"), float("inf")))
        if isinstance(value, bytes):
            return of_bytes(value, rng)
        if isinstance(value, str) and value:
            place = rng.randrange(len(value))
            return value[:place] + rng.choice(TEXTS)[:40] + value[place + rng.randrange(2) :]
    return scalar(rng)
