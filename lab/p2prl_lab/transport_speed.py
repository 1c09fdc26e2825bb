"""Speed and processor seconds of the transports, for frames of 4 MiB over loopback, each end in a process of its own.

    python -m p2prl_lab.transport_speed [--mb 512] [--runs 3] [--json]

Ends are `daemon` (the default transport), `spliced` (the same over a connection that the network process opened, as
homes that have met use it, with packets of 1,220 bytes) and `libp2p` (py-libp2p). Each row is one pair: bytes by
second, and processor seconds a gigabyte of the sender's and the receiver's processes, their daemons apart. Medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import psutil

from p2prl.net.ports import MeetingTransport, Transport
from p2prl.net.transports.multiaddrs import split_peer
from p2prl.protocol.identity import Identity

PAIRS = (("daemon", "daemon"), ("spliced", "daemon"), ("libp2p", "daemon"), ("daemon", "libp2p"), ("libp2p", "libp2p"))
"""Senders and receivers."""

_LOCAL = ("/ip4/127.0.0.1/tcp/0",)
_FRAME_BYTES = 4 << 20
_FRAME_S = 120.0


def main() -> int:
    """Measure all pairs, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=512, help="sent by the default transport; py-libp2p a fourth")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--end", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.end:
        asyncio.run(_end(*arguments.end))
        return 0
    rows = []
    for sender, receiver in PAIRS:
        share = 4 if "libp2p" in (sender, receiver) else 1
        runs = [_measured(sender, receiver, arguments.mb * 1_000_000 // share) for _ in range(arguments.runs)]
        rows.append(
            {"sender": sender, "receiver": receiver}
            | {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
        )
        if not arguments.json:
            print(rows[-1], flush=True)
    if arguments.json:
        print(json.dumps({"rows": rows, "frame_bytes": _FRAME_BYTES, "runs": arguments.runs}))
    return 0


def _measured(sender: str, receiver: str, size_bytes: int) -> dict[str, float]:
    """One transfer: `mb_s`, and processor seconds a gigabyte by end and process."""
    here = [sys.executable, "-m", "p2prl_lab.transport_speed", "--end"]
    with subprocess.Popen([*here, receiver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as receiving:
        assert receiving.stdin is not None
        assert receiving.stdout is not None
        try:
            address = json.loads(receiving.stdout.readline())["address"]
            sent = subprocess.run([*here, sender, address, str(size_bytes)], stdout=subprocess.PIPE, check=True)
            receiving.stdin.write("\n")
            receiving.stdin.flush()
            received = json.loads(receiving.stdout.readline())
        finally:
            receiving.kill()
    ends = {"sender": json.loads(sent.stdout.splitlines()[-1]), "receiver": received}
    gb = size_bytes / 1e9
    per_gb = {f"{end}_{part}_s_gb": found[part] / gb for end, found in ends.items() for part in ("own", "daemon")}
    return {"mb_s": size_bytes / 1e6 / ends["sender"]["seconds"], **per_gb}


async def _end(kind: str, address: str = "", size_bytes: str = "0") -> None:
    """One end: a receiver says where it is, and what it used once it is asked; a sender sends and says so."""
    transport = await _started(kind)
    try:
        if not address:
            transport.set_receiver(lambda _peer, _frame: None)
            print(json.dumps({"address": transport.addresses[0]}), flush=True)
            before = _used()
            await asyncio.to_thread(sys.stdin.readline)
            print(json.dumps(_spent(before)), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            return
        if isinstance(transport, MeetingTransport) and kind == "spliced":
            peer = split_peer(address)[1]
            await transport.meet(address, dials=True)
        else:
            peer = await transport.connect(address)
        frame = os.urandom(_FRAME_BYTES)
        await transport.send(peer, frame, timeout_s=_FRAME_S)
        before, began = _used(), time.monotonic()
        for _ in range(int(size_bytes) // _FRAME_BYTES):
            await transport.send(peer, frame, timeout_s=_FRAME_S)
        print(json.dumps({"seconds": time.monotonic() - began, **_spent(before)}), flush=True)
    finally:
        await transport.close()


async def _started(kind: str) -> Transport:
    identity = Identity.generate(os.urandom(16))
    if kind == "libp2p":
        from p2prl.net.transports.libp2p.transport import Libp2pTransport  # shares no process with hivemind

        return await Libp2pTransport.start(identity, listen=_LOCAL)
    from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
    from p2prl.net.transports.hivemind.transport import HivemindTransport

    config = DaemonConfig(nat_port_map=False, auto_nat=False)
    return await HivemindTransport.start(identity, listen=_LOCAL, daemon_config=config)


def _used() -> dict[str, float]:
    """Processor seconds of this process and of its daemon so far."""
    me = psutil.Process()
    seconds = [sum(process.cpu_times()[:2]) for process in (me, *me.children(recursive=True))]
    return {"own": seconds[0], "daemon": sum(seconds[1:])}


def _spent(before: dict[str, float]) -> dict[str, Any]:
    return {name: seconds - before[name] for name, seconds in _used().items()}


if __name__ == "__main__":
    sys.exit(main())
