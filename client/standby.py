"""Standby of a volunteer whose owner agreed to it: the run has enough groups, and says for how long."""

from __future__ import annotations

import time

from p2prl.protocol.peer_messages import Standby


class StandbyFollower:
    """Follows the learner's messages about one volunteer. Pure but for the local time in its text."""

    def __init__(self, peer: bytes, *, is_agreed: bool) -> None:
        """`peer` is the volunteer's public key; without agreement nothing is followed."""
        self._peer = peer
        self._is_agreed = is_agreed
        self._sent_ms = 0
        self._until_ms = 0

    def take(self, message: Standby, sent_ms: int) -> None:
        """Take in a message of the learner. One that is older than the last says nothing new."""
        if self._is_agreed and sent_ms > self._sent_ms:
            self._sent_ms = sent_ms
            self._until_ms = message.until_ms if self._peer in message.peers else 0

    def reason(self, now: float) -> str:
        """Why the volunteer stands by now, and until when; empty when it works."""
        if now * 1000 >= self._until_ms:
            return ""
        until = time.strftime("%H:%M", time.localtime(self._until_ms / 1000))
        return f"standing by until {until} or longer: the run has enough groups without this machine"
