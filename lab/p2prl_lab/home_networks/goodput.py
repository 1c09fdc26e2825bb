"""The lab's goodput: how fast weights cross one line of some delay, beside plain TCP on the same line.

A learner publishes random weights, and one volunteer behind a home router downloads them; nobody else is there. A
version's time is from its announcement to the last byte, by the volunteer's clock. First a socket of the kernel sends
as many bytes.
"""

from __future__ import annotations

import asyncio
import random
import socket
import statistics
import time
from pathlib import Path
from typing import Any

from p2prl_lab.home_networks.internet import Internet
from p2prl_lab.home_networks.namespaces import Machine, machines_of
from p2prl_lab.home_networks.network_swarm import NetworkSwarm
from p2prl_lab.home_networks.router import running_router
from p2prl_lab.home_networks.site_processes import LEARNER
from p2prl_lab.home_networks.sites import LineSpeed, make_site
from p2prl_lab.testing.swarm_processes import SwarmProcesses

_WORKER, _KIND = "home-1", "restricted"
_PORT = 5001
_POLL_S, _PATIENCE_S = 0.5, 120.0
_PART_BYTES = 1 << 16


def goodput_report(
    folder: Path,
    *,
    round_trips_ms: tuple[float, ...],
    mbit: float,
    loss: float,
    size_bytes: int,
    versions: int,
    seed: int,
) -> dict[str, Any]:
    """Rows `round_trip_ms`, `p2prl_mbit`, `tcp_mbit`, `share`: medians. Call it in a space of its own.

    `loss` is the share of packets lost in each direction.
    """
    rows = []
    for round_trip_ms in round_trips_ms:
        rng = random.Random(seed)  # noqa: S311 - draws nothing here that matters
        # Two lines, both ways.
        line = LineSpeed(up_mbit=mbit, down_mbit=mbit, delay_s=round_trip_ms / 4_000, loss=1 - (1 - loss) ** 0.5)
        sites = [make_site(LEARNER, "public", 0, line), make_site(_WORKER, _KIND, 1, line)]
        home = folder / f"rtt-{round_trip_ms:g}"
        home.mkdir(parents=True)
        processes = SwarmProcesses(home)
        with machines_of(sites) as machines, running_router(Internet(sites, rng), machines), processes.running():
            tcp_s = [asyncio.run(_plain_tcp(machines, size_bytes)) for _ in range(versions)]
            swarm = NetworkSwarm(home, machines, processes, weight_bytes=size_bytes, period_s=4 * max(tcp_s) + 2)
            swarm.start_learner()
            swarm.start_worker(_WORKER, "seed")
            took_s = _wait_for(swarm, versions)
        ours, theirs = (8e-6 * size_bytes / statistics.median(times) for times in (took_s, tcp_s))
        rows.append(
            {
                "round_trip_ms": round_trip_ms,
                "p2prl_mbit": round(ours, 2),
                "tcp_mbit": round(theirs, 2),
                "share": round(ours / theirs, 3),
            }
        )
    return {"goodput": rows, "line_mbit": mbit, "loss": loss, "size_bytes": size_bytes}


def _wait_for(swarm: NetworkSwarm, versions: int) -> list[float]:
    """Download times of that many versions, without the first: the volunteer had to find the learner."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        took_s = list(swarm.status(_WORKER).get("took_s", ()))
        if len(took_s) > versions:
            return took_s[1:]
        if time.monotonic() > until:
            raise SystemExit(f"{len(took_s)} of {versions + 1} versions arrived within {_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)


async def _plain_tcp(machines: dict[str, Machine], size_bytes: int) -> float:
    """Seconds from the first byte's request to the last byte."""
    loop = asyncio.get_running_loop()
    with (
        machines[LEARNER].socket(socket.SOCK_STREAM) as listener,
        machines[_WORKER].socket(socket.SOCK_STREAM) as client,
    ):
        listener.bind(("", _PORT))
        listener.listen(1)

        async def serve() -> None:
            connection, _ = await loop.sock_accept(listener)
            with connection:
                await loop.sock_sendall(connection, bytes(size_bytes))

        serving = asyncio.create_task(serve())
        await loop.sock_connect(client, ("44.130.7.1", _PORT))
        began, received = time.monotonic(), 0
        while received < size_bytes:
            received += len(await loop.sock_recv(client, _PART_BYTES))
        await serving
        return time.monotonic() - began
