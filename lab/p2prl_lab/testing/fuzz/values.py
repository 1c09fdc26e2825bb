"""Make random values of any wire struct from its annotations: legal types, hostile contents."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgspec
from msgspec import inspect

INTEGERS = (
    0, 1, -1, 2, 7, 31, 32, 127, 128, 255, 256, 4095, 4096, 65_535, 65_536, 131_072, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 32, (1 << 48) - 1, 1 << 48, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, -(1 << 31), -(1 << 63),
    (1 << 64) - 1,
)  # fmt: skip
"""Integers next to the limits of the usual types. msgpack has none outside -2^63 to 2^64."""

FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-320, 1e308, -1e308, float("inf"), float("-inf"), float("nan"))

TEXTS = (
    "", "a", "chain4", "\x00", "\n", "\x1b[31m", "\u202e", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode(
        "utf-16"
    ), "ﷺ", "/", "../../etc/passwd", "float32", "bfloat16", "x" * 65, "x" * 2_001, "/ip4/127.0.0.1/tcp/1", "{}", "[",
    "seed_mismatch", "success", "config.json",
)  # fmt: skip
"""Texts that break naive readers: empty, control, right-to-left, paths, and one character more than the limits."""

_LENGTHS = (0, 1, 2, 4, 8, 16, 31, 32, 32, 32, 33, 64, 255, 4096)
_MANY = (300, 2_000)
"""Entries of the rare long lists."""

_DEEPEST = 6


def value_of(kind: Any, rng: random.Random, pool: tuple[bytes, ...] = ()) -> Any:
    """A value that `msgspec` encodes as a `kind`. `pool` has byte strings that mean something to the reader."""
    return _value(inspect.type_info(kind), rng, pool, 0)


def _value(info: inspect.Type, rng: random.Random, pool: tuple[bytes, ...], depth: int) -> Any:
    match info:
        case inspect.StructType():
            fields = {field.name: _value(field.type, rng, pool, depth + 1) for field in info.fields}
            return info.cls(**fields)
        case inspect.VarTupleType():
            return tuple(_value(info.item_type, rng, pool, depth + 1) for _ in range(_count(rng, depth)))
        case inspect.TupleType():
            return tuple(_value(each, rng, pool, depth + 1) for each in info.item_types)
        case inspect.UnionType():
            return _value(rng.choice(info.types), rng, pool, depth)
        case inspect.IntType():
            return integer(rng)
        case inspect.FloatType():
            return rng.choice(FLOATS) if rng.random() < 0.5 else rng.gauss(0.0, 100.0)
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.BytesType():
            return rng.choice(pool) if pool and rng.random() < 0.4 else rng.randbytes(rng.choice(_LENGTHS))
        case inspect.StrType():
            return rng.choice(TEXTS)
        case inspect.NoneType():
            return None
        case _:
            raise TypeError(f"no values of {info}: teach p2prl_lab.testing.fuzz.values this annotation")


def integer(rng: random.Random) -> int:
    """An integer, near a limit half the time."""
    return rng.choice(INTEGERS) if rng.random() < 0.5 else rng.randrange(1 << rng.choice((4, 8, 16, 40)))


def _count(rng: random.Random, depth: int) -> int:
    if depth < _DEEPEST and rng.random() < 0.01:
        return rng.choice(_MANY)
    return rng.choice((0, 1, 1, 2, 3))


def any_msgpack(rng: random.Random) -> Any:
    """A scalar of any type that msgpack has."""
    return rng.choice(
        (
            None,
            rng.random() < 0.5,
            integer(rng),
            rng.choice(FLOATS),
            rng.choice(TEXTS),
            rng.randbytes(rng.choice(_LENGTHS)),
            [],
            {},
            [[]] * rng.choice((1, 3, 40)),
            msgspec.Raw(b"\x91" * rng.choice((3, 100, 2_000)) + b"\xc0"),
            msgspec.Raw(b"\xdd" + struct.pack(">I", rng.choice((1, 70_000, (1 << 32) - 1)))),
            msgspec.Raw(b"\xc6" + struct.pack(">I", rng.choice((1, 70_000, (1 << 32) - 1)))),
        )
    )
