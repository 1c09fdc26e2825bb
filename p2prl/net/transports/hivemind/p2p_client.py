"""hivemind's `P2P` client, joined to our daemon; the directory makes its calls through it."""

from __future__ import annotations

import asyncio
from typing import Any

from p2prl.errors import TransportError
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.daemon import Daemon


class _LivePending(dict[Any, Any]):
    """hivemind's table of calls in flight, without abandoned calls.

    Its reader sets a result on every call listed. A call that timed out stays listed for one turn of the loop; an
    answer in that turn would raise InvalidStateError and end the reader, and this peer would never receive another
    answer.
    """

    def __contains__(self, call: object) -> bool:
        future = self.get(call)
        return future is not None and not future.done()


async def join_daemon(daemon: Daemon) -> Any:
    """hivemind's `P2P` on our daemon, with its sockets in our private folder. Raises `TransportError`."""
    library = light_import.load()
    private = type("PrivateP2P", (library.P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{daemon.folder}/"})
    try:
        p2p = await private.replicate(library.Multiaddr(f"/unix{daemon.control_path}"))  # type: ignore[attr-defined]
    except (OSError, EOFError, library.P2PDaemonError) as error:
        raise TransportError(f"the network daemon does not answer: {error}") from error
    p2p._client.control._pending_calls = _LivePending(p2p._client.control._pending_calls)
    return p2p


async def leave_daemon(p2p: Any) -> None:
    """Close the client's connections; the daemon itself keeps running."""
    control = p2p._client.control
    await p2p.shutdown()
    await asyncio.gather(control._read_task, control._write_task, return_exceptions=True)
