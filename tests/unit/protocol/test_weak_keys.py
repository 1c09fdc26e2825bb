"""Keys that anybody can sign for, found by the curve's arithmetic, have no valid signature."""

from __future__ import annotations

import random

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from p2prl.protocol.identity import Identity, verify_raw

FIELD = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
"""Of the subgroup that honest keys are in (RFC 8032, section 5.1); the whole group has eight times as many points."""
D = -121665 * pow(121666, -1, FIELD) % FIELD

Point = tuple[int, int]


def add(left: Point, right: Point) -> Point:
    """RFC 8032, section 5.1.4, without projective coordinates."""
    (x, y), (u, v) = left, right
    both = D * x * u * y * v % FIELD
    return (
        (x * v + y * u) * pow(1 + both, -1, FIELD) % FIELD,
        (y * v + x * u) * pow(1 - both, -1, FIELD) % FIELD,
    )


def times(number: int, point: Point) -> Point:
    total = (0, 1)
    while number:
        if number & 1:
            total = add(total, point)
        point, number = add(point, point), number >> 1
    return total


def any_point(rng: random.Random) -> Point:
    """A point of the whole group: half of all y have one."""
    while True:
        y = rng.randrange(FIELD)
        square = (y * y - 1) * pow(D * y * y + 1, -1, FIELD) % FIELD
        x = pow(square, (FIELD + 3) // 8, FIELD)
        for root in (x, x * pow(2, (FIELD - 1) // 4, FIELD) % FIELD):
            if root * root % FIELD == square:
                return root, y


def small_points() -> set[Point]:
    """The eight points whose order divides eight."""
    rng = random.Random(0)
    found = {(0, 1)}
    while len(found) < 8:
        torsion = times(ORDER, any_point(rng))
        found |= {times(number, torsion) for number in range(8)}
    return found


def writings(points: set[Point]) -> list[bytes]:
    """All ways to write these points in 32 bytes: either sign bit, and y or y plus the field where that fits."""
    numbers = {y + more for _, y in points for more in (0, FIELD) if y + more < 2**255}
    return [(number | sign << 255).to_bytes(32, "little") for number in sorted(numbers) for sign in (0, 1)]


WEAK = writings(small_points())
IDENTITY = (1).to_bytes(32, "little")


def fitting(key: bytes, data: bytes) -> bytes | None:
    """A signature without a secret that the library accepts: no multiple of the base point, and a small point."""
    for nonce in WEAK:
        signature = nonce + bytes(32)
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
        except (InvalidSignature, ValueError):
            continue
        return signature
    return None


def test_there_are_eight_points_and_fourteen_writings() -> None:
    assert len(small_points()) == 8
    assert len(WEAK) == 14


@pytest.mark.parametrize("key", WEAK, ids=bytes.hex)
def test_nobody_signs_with_a_weak_key(key: bytes) -> None:
    forged = [(data, signature) for data in map(bytes, ([], [1], [2], [3])) if (signature := fitting(key, data))]
    assert not any(verify_raw(key, data, signature) for data, signature in forged)


def test_the_library_alone_takes_one_signature_for_any_bytes() -> None:
    signature = IDENTITY + bytes(32)
    for data in (b"", b"credit me", b"revoke you"):
        Ed25519PublicKey.from_public_bytes(IDENTITY).verify(signature, data)
        assert not verify_raw(IDENTITY, data, signature)


def test_most_weak_keys_have_such_signatures() -> None:
    """So that the test above says something of each order."""
    assert sum(any(fitting(key, bytes([number])) for number in range(16)) for key in WEAK) >= 8


def test_keys_of_the_large_group_sign_as_before() -> None:
    rng = random.Random(1)
    for _ in range(50):
        identity = Identity(rng.randbytes(16))
        assert verify_raw(identity.public_key, b"work", identity.sign_raw(b"work"))
