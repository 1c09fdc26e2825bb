"""A decoder to fuzz: how to call it, what valid input looks like, and which errors it may raise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from p2prl.errors import IntegrityError, P2PRLError, RemoteProtocolError
from p2prl_lab.testing.fuzz import mutations

Change = Callable[[bytes, random.Random], bytes]

PROTOCOL_ERRORS: tuple[type[P2PRLError], ...] = (RemoteProtocolError, IntegrityError)
"""What a decoder of a peer's bytes may raise."""

_MOST_BYTES = 8 * 1024 * 1024
"""Longest input: more than a frame. Transports and run manifests bound the rest."""

_ANY = (0, 1, 3, 16, 60, 300, 5_000)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One decoder."""

    name: str
    decode: Callable[[bytes], object]
    """Read one input, and use the result as the product does."""
    examples: tuple[bytes, ...]
    """Valid inputs, at least one."""
    changes: tuple[Change, ...] = (mutations.of_bytes,)
    """Ways to change an example."""
    make: Callable[[random.Random], bytes] | None = None
    """Structured inputs from nothing."""
    allowed: tuple[type[P2PRLError], ...] = PROTOCOL_ERRORS
    """Errors it may raise; for texts that a person pastes, those of that person."""
    share: float = 1.0
    """Its part of the inputs: more for what is cheap."""

    def input(self, rng: random.Random) -> bytes:
        """The next input: a changed example, mostly; a structured one, any bytes, or an example as it is."""
        choice = rng.random()
        if choice < 0.02:
            return rng.choice(self.examples)
        if choice < 0.05:
            return rng.randbytes(rng.choice(_ANY))
        if self.make is not None and choice < 0.35:
            made = self.make(rng)
            return (rng.choice(self.changes)(made, rng) if choice < 0.1 else made)[:_MOST_BYTES]
        return rng.choice(self.changes)(rng.choice(self.examples), rng)[:_MOST_BYTES]
