"""The fault of sending a chunk that is wrong or that nobody asked for; relay and groups share it."""

from __future__ import annotations

from p2prl.errors import RemoteProtocolError


class BadChunkError(RemoteProtocolError):
    """A chunk whose proof fails, or that was not requested from its sender.

    The first proves malice. So does the second, unless the chunk is a true one: this node may have forgotten a request,
    since it may have restarted, and the sender has not.
    """

    def __init__(self, message: str, *, is_proof: bool = True, is_leftover: bool = False) -> None:
        """`is_leftover`: no fault at all, since no more such chunks came than a request may still be open for."""
        super().__init__(message)
        self.is_proof = is_proof
        self.is_leftover = is_leftover
