"""The py-libp2p side of the interoperation tests, in a separate process (hivemind's environment may lack libp2p).

`serve ENTROPY BOOTSTRAP...` echoes frames; each line on standard input sends its JSON {"peer", "size"} and prints how
it went. `plaintext ADDRESS` dials offering plaintext alone. `open` is a host with py-libp2p's default security.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
import time
from typing import Any

import trio

from p2prl.errors import TransportError
from p2prl.net.transports.libp2p.transport import Libp2pTransport
from p2prl.protocol.identity import Identity, PeerId


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)  # noqa: T201


async def serve(entropy: str, *bootstrap: str) -> None:
    me = await Libp2pTransport.start(
        Identity.generate(bytes.fromhex(entropy)), listen=("/ip4/127.0.0.1/tcp/0",), bootstrap=bootstrap
    )
    arrivals: asyncio.Queue[tuple[PeerId, bytes]] = asyncio.Queue()
    me.set_receiver(lambda peer, frame: arrivals.put_nowait((peer, frame)))
    say(peer_id=me.peer_id, addresses=me.addresses)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if order["do"] == "send":
            frame = os.urandom(order["size"])
            started_at = time.monotonic()
            try:
                await me.send(order["peer"], frame, timeout_s=order.get("timeout_s", 20))
            except TransportError as error:
                say(error=str(error), took_s=time.monotonic() - started_at)
            else:
                say(digest=hashlib.sha256(frame).hexdigest())
        elif order["do"] == "receive":
            peer, frame = await arrivals.get()
            say(peer=peer, digest=hashlib.sha256(frame).hexdigest(), size=len(frame))
        elif order["do"] == "records":
            try:
                await me.get_records(b"k")
            except TransportError as error:
                say(error=str(error))
    await me.close()


async def plaintext(address: str) -> None:
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
    from multiaddr import Multiaddr

    keys = create_new_key_pair()
    host = new_host(key_pair=keys, sec_opt={PLAINTEXT_PROTOCOL_ID: InsecureTransport(keys)})
    outcome = "refused"
    async with host.run(listen_addrs=[]):
        with contextlib.suppress(Exception), trio.fail_after(8):
            await host.connect(info_from_p2p_addr(Multiaddr(address)))
            outcome = "connected"
        say(outcome=outcome)


async def default_host() -> None:
    from libp2p import new_host
    from multiaddr import Multiaddr

    host = new_host()
    async with host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        say(addresses=[str(address) for address in host.get_addrs()])
        await trio.to_thread.run_sync(sys.stdin.readline)


if __name__ == "__main__":
    mode, *arguments = sys.argv[1:]
    if mode == "serve":
        asyncio.run(serve(*arguments))
    elif mode == "plaintext":
        trio.run(plaintext, *arguments)
    else:
        trio.run(default_host)
