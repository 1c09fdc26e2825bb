"""Wire version: which peers this program can work with. The package's version has nothing to do with it."""

from __future__ import annotations

WIRE_VERSION = 8
"""Peers of different versions do not work together: a changed limit, message or signature is another version."""


def is_spoken(version: int) -> bool:
    """Whether this program works with a peer of this version."""
    return version == WIRE_VERSION


def is_newer(version: int) -> bool:
    """Whether a peer of this version has moved on: an update of this program would help."""
    return version > WIRE_VERSION
