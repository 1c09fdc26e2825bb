"""Meet a p2prl host with other software's libp2p: connect, identify, ping, and send one frame.

    python -m p2prl_lab.foreign_clients                     # py-libp2p, if it is installed
    python -m p2prl_lab.foreign_clients --js FOLDER         # js-libp2p too; FOLDER is where npm installed it:
    npm install libp2p @libp2p/tcp @chainsafe/libp2p-noise @chainsafe/libp2p-yamux @libp2p/identify @libp2p/ping

The host is the default transport; each client is a process of its own that knows nothing of p2prl but the names of its
protocols. A row tells the client, the agent and the p2prl version that identify names, whether the frame was
acknowledged and arrived as sent, and the round trip of a ping. Exit code 1 if a client fails.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from p2prl.net.transports import framing
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol.identity import Identity

_PATIENCE_S = 60.0
_FRAME = bytes(range(200))

_PYTHON = f"""
import json, sys, time
import trio
from libp2p import new_host
from libp2p.custom_types import TProtocol
from libp2p.host.ping import PingService
from libp2p.identity.identify.identify import ID, parse_identify_response
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.utils.varint import read_length_prefixed_protobuf
from multiaddr import Multiaddr

async def main():
    host, info = new_host(muxer_preference="YAMUX"), info_from_p2p_addr(Multiaddr(sys.argv[1]))
    async with host.run(listen_addrs=[]):
        with trio.fail_after({_PATIENCE_S}):
            await host.connect(info)
            stream = await host.new_stream(info.peer_id, [ID])
            told = parse_identify_response(await read_length_prefixed_protobuf(stream))
            began = time.monotonic()
            await PingService(host).ping(info.peer_id)
            ping_s = time.monotonic() - began
            stream = await host.new_stream(info.peer_id, [TProtocol("{framing.FRAME_PROTOCOL}")])
            frame = bytes.fromhex("{_FRAME.hex()}")
            await stream.write(len(frame).to_bytes(4, "little") + frame)
            acknowledged = await stream.read(1) == b"\\x06"
    print(json.dumps({{"agent": told.agent_version, "protocols": list(told.protocols), "acknowledged": acknowledged,
                      "ping_ms": 1000 * ping_s}}))

trio.run(main)
"""

_JAVASCRIPT = f"""
import {{ createLibp2p }} from 'libp2p'
import {{ tcp }} from '@libp2p/tcp'
import {{ noise }} from '@chainsafe/libp2p-noise'
import {{ yamux }} from '@chainsafe/libp2p-yamux'
import {{ identify }} from '@libp2p/identify'
import {{ ping }} from '@libp2p/ping'
import {{ multiaddr }} from '@multiformats/multiaddr'

Promise.withResolvers ??= function () {{  // of Node 22
  const made = {{}}
  made.promise = new Promise((resolve, reject) => Object.assign(made, {{ resolve, reject }}))
  return made
}}
const node = await createLibp2p({{
  transports: [tcp()], connectionEncrypters: [noise()], streamMuxers: [yamux()],
  services: {{ identify: identify(), ping: ping() }}
}})
const place = multiaddr(process.argv[2])
const connection = await node.dial(place)
const told = await node.services.identify.identify(connection)
const pingMs = await node.services.ping.ping(place)
const stream = await connection.newStream('{framing.FRAME_PROTOCOL}')
const frame = Buffer.from('{_FRAME.hex()}', 'hex')
const size = Buffer.alloc(4)
size.writeUInt32LE(frame.length)
const answered = new Promise(resolve => stream.addEventListener('message', event => resolve(event.data)))
stream.send(Buffer.concat([size, frame]))
const answer = (await answered).subarray()
console.log(JSON.stringify({{ agent: told.agentVersion, protocols: told.protocols, acknowledged: answer[0] === 6,
  ping_ms: pingMs }}))
await node.stop()
process.exit(0)
"""


def main() -> int:
    """Run the clients that there are, and print their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--js", type=Path, help="folder in which npm installed js-libp2p")
    rows = asyncio.run(_meet_all(parser.parse_args().js))
    for row in rows:
        print(json.dumps(row), flush=True)
    return 0 if rows and all(row["works"] for row in rows) else 1


async def _meet_all(javascript: Path | None) -> list[dict[str, Any]]:
    config = DaemonConfig(nat_port_map=False, auto_nat=False)
    identity = Identity.generate(os.urandom(16))
    host = await HivemindTransport.start(identity, listen=("/ip4/127.0.0.1/tcp/0",), daemon_config=config)
    try:
        rows = []
        if importlib.util.find_spec("libp2p") is not None:
            rows.append({"client": "py-libp2p", **await _met(host, sys.executable, _PYTHON, ".py", None)})
        if javascript is not None:
            rows.append({"client": "js-libp2p", **await _met(host, "node", _JAVASCRIPT, ".mjs", javascript)})
        return rows
    finally:
        await host.close()


async def _met(host: HivemindTransport, program: str, source: str, suffix: str, folder: Path | None) -> dict[str, Any]:
    """Run a client beside its libraries in `folder`, and check what it says against what the host got."""
    if shutil.which(program) is None:
        return {"works": False, "error": f"{program} is not installed"}
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    host.set_receiver(lambda _peer, frame: arrived.put_nowait(frame))
    with tempfile.NamedTemporaryFile("w", suffix=suffix, dir=folder) as file:
        file.write(source)
        file.flush()
        client = await asyncio.create_subprocess_exec(
            *(program, file.name, host.addresses[0]), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                output, errors = await client.communicate()
        except TimeoutError:
            client.kill()
            await client.wait()
            return {"works": False, "error": f"no answer within {_PATIENCE_S:.0f} s"}
    if client.returncode:
        return {"works": False, "error": errors.decode("utf-8", "replace").strip()[:500]}
    said = json.loads(output.splitlines()[-1])
    is_whole = not arrived.empty() and arrived.get_nowait() == _FRAME
    versions = [name for name in said["protocols"] if name == framing.VERSION_PROTOCOL]
    return {
        "works": is_whole and said["acknowledged"] and bool(versions),
        "agent": said["agent"],
        "p2prl": "".join(versions),
        "frame_arrived": is_whole,
        "acknowledged": said["acknowledged"],
        "ping_ms": round(said["ping_ms"], 1),
    }


if __name__ == "__main__":
    sys.exit(main())
