"""Message kinds and peer roles, with their numbers on the wire.

Link messages pass between two linked peers; the connection authenticates them. Signed messages travel inside an
envelope, anybody may relay them, and they prove something to a third party.
"""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """Kind numbers. 1 to 31 are link messages, 32 to 127 are signed."""

    HELLO = 1
    OFFER = 2
    WANT = 3
    PUSH = 4
    HAVE = 5
    CHUNK_REQUEST = 6
    CHUNK = 7
    CHUNK_REFUSED = 8
    BLOB_QUERY = 9
    LEDGER_QUERY = 10
    LEDGER_PAGE = 11
    LINK_RATES = 12
    CHUNK_GRANT = 13
    GRANT_DECLINED = 14
    CHUNK_CANCEL = 15
    MEETING_REQUEST = 16
    MEETING = 17
    PADDING = 18
    FOLLOW_QUERY = 19
    FOLLOW_PIECE = 20

    RUN_MANIFEST = 32
    POLICY_MANIFEST = 33
    PEER_RECORD = 34
    ROLLOUT_GROUP = 35
    STORAGE_RECEIPT = 36
    RECEIPTS = 37
    VERDICT = 38
    LEDGER_HEAD = 39
    POLICY_HEAD = 40
    INTRODUCTION = 41
    GROUP_HEADER = 42
    DELEGATION = 43
    REVOCATION = 44
    VERDICT_CHECKS = 45
    COUNTERSIGNATURE = 46
    MEMBERSHIP = 47
    STANDBY = 48


TOMBSTONES: frozenset[int] = frozenset()
"""Retired kind numbers. They must never be given to another message."""


class Role(IntEnum):
    """Role of a peer in a run. It decides which messages others send to the peer without being asked."""

    VOLUNTEER = 1
    LEARNER = 2
    VALIDATOR = 3
    BOARD = 4
    SEEDER = 5
