"""The network process's log reaches its role, from any thread, and the terminal once the role has gone."""

from __future__ import annotations

import asyncio
import io
import logging
from typing import Any, cast

import pytest

from p2prl.net.process import control
from p2prl.net.process.role_log import logging_to_role


class Writer:
    """The end of a stream."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def lines(self) -> list[str]:
        """The lines of the log messages written."""
        found, left = [], bytes(self.written)
        while left:
            size = control.LENGTH.unpack(left[: control.LENGTH.size])[0]
            body, left = left[control.LENGTH.size :][:size], left[control.LENGTH.size + size :]
            message = control.parse_from_network(body)
            assert isinstance(message, control.Logged)
            found.append(message.line)
        return found


def test_lines_go_to_the_role_while_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, printed = Writer(), io.StringIO()
    handler = logging.StreamHandler(printed)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    log = logging.getLogger("p2prl.net")

    async def run() -> None:
        with logging_to_role(cast(Any, writer)):
            log.warning("no %s", "space")
            await asyncio.to_thread(log.warning, "from a thread")
            await asyncio.sleep(0)
            assert writer.lines() == ["p2prl.net: no space", "p2prl.net: from a thread"]
            assert printed.getvalue() == ""
            writer.closed = True
            log.warning("alone")
        log.warning("after")

    asyncio.run(run())
    assert len(writer.lines()) == 2
    assert printed.getvalue() == "p2prl.net: alone\np2prl.net: after\n"
