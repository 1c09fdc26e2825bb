"""Announcements on the local network by multicast DNS: the only module that imports `zeroconf`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from p2prl.errors import MachineError
from p2prl.installation import install_command

if TYPE_CHECKING:
    from p2prl.net.ports import LocalNetwork

Answer = Callable[[Mapping[bytes, bytes | None], Sequence[str], int], object]
"""Takes the properties, IP addresses and port of a service that was found."""

_QUESTION_MS = 3_000
_AT_ONCE = 16
"""Services asked for their addresses at one moment; those that come meanwhile are asked when they repeat themselves."""


class MulticastDns:
    """`p2prl.net.ports.LocalNetwork` over multicast DNS."""

    def __init__(self, service: str, on_answer: Answer, interfaces: Sequence[str] | None) -> None:
        """Searches for services of a type from now on. `interfaces` are addresses of this machine; None for all.

        Raises `OSError` when the system does not allow it.
        """
        from zeroconf import InterfaceChoice
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

        self._service = service
        self._on_answer = on_answer
        self._asking: set[asyncio.Task[None]] = set()
        self._announced = False
        self._zeroconf = AsyncZeroconf(interfaces=InterfaceChoice.All if interfaces is None else list(interfaces))
        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, [service], handlers=[self._on_change])

    async def announce(self, name: str, properties: Mapping[bytes, bytes], hosts: Sequence[str], port: int) -> None:
        from zeroconf.asyncio import AsyncServiceInfo

        packed = [socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host) for host in hosts]
        info = AsyncServiceInfo(
            self._service, name, addresses=packed, port=port, properties=dict(properties), server=name
        )
        if self._announced:
            await self._zeroconf.async_update_service(info)
        else:
            # The name comes from a key. To ask whether it is free would let any machine on the network forbid it.
            await self._zeroconf.async_register_service(info, cooperating_responders=True)
        self._announced = True

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._browser.async_cancel()
        await self._zeroconf.async_close()

    def _on_change(self, **change: Any) -> None:
        """A service came, changed or went: `name` and `state_change`, as the library calls them."""
        if change["state_change"].name == "Removed" or len(self._asking) >= _AT_ONCE:
            return
        task = asyncio.get_running_loop().create_task(self._ask(change["name"]))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, name: str) -> None:
        from zeroconf.asyncio import AsyncServiceInfo

        info = AsyncServiceInfo(self._service, name)
        if await info.async_request(self._zeroconf.zeroconf, _QUESTION_MS):
            self._on_answer(info.properties, info.parsed_addresses(), info.port or 0)


def start_mdns(service: str, on_answer: Answer, interfaces: Sequence[str] | None = None) -> LocalNetwork:
    """Search the local network for services of a type. Raises `MachineError` with a remedy."""
    try:
        return MulticastDns(service, on_answer, interfaces)
    except ImportError as error:
        raise MachineError("--lan needs the library zeroconf", remedy=install_command("lan")) from error
    except OSError as error:
        raise MachineError(
            f"the local network cannot be searched: {error}", remedy="Leave --lan out, or name peers with --peers."
        ) from error
