"""A run's peer records in the directory: one read at a time, and writes wait for it."""

from __future__ import annotations

import asyncio
import logging

from p2prl.errors import TransportError
from p2prl.net.ports import Transport
from p2prl.net.process.key_use import KeyUse
from p2prl.protocol.digests import digest

log = logging.getLogger("p2prl.net")


class RunDirectory:
    """Reads and writes the records of one run."""

    def __init__(self, transport: Transport, run: bytes, key_use: KeyUse | None = None) -> None:
        """`key_use` detects a record that another process wrote with our key."""
        self._transport = transport
        self._key = digest("p2prl/directory/v1", run)
        self._key_use = key_use
        self._idle = asyncio.Event()
        self._idle.set()

    def begin_read(self) -> bool:
        """Reserve the next `read`. False while another one is in progress."""
        if not self._idle.is_set():
            return False
        self._idle.clear()
        return True

    async def read(self) -> list[bytes] | None:
        """The records of all peers; None when the directory does not answer."""
        try:
            records = await self._transport.get_records(self._key)
        except TransportError as error:
            log.debug("directory lookup failed: %s", error)
            return None
        finally:
            self._idle.set()
        if self._key_use is not None:
            self._key_use.read(records)
        return list(records.values())

    async def write(self, record: bytes, expires_at: float) -> None:
        """Store our record after any read in progress: it would overwrite evidence that another process uses our
        key."""
        await self._idle.wait()
        try:
            await self._transport.put_record(self._key, record, expires_at)
        except TransportError as error:
            log.debug("directory record not stored: %s", error)
