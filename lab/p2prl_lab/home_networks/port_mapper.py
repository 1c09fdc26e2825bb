"""A router's side of NAT-PMP, as a program on the router: it opens ports in the kernel's NAT.

python -m p2prl_lab.home_networks.port_mapper 192.168.1.1 5351
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import psutil

from p2prl_lab.home_networks.kernel_routers import OUTSIDE_DEVICE, opened_port
from p2prl_lab.home_networks.packets import TCP
from p2prl_lab.home_networks.port_requests import PortTable

_LONGEST_REQUEST = 64


def serve(host: str, port: int) -> None:
    """Serve until killed."""
    table = PortTable()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind((host, port))
        while True:
            request, client = listening.recvfrom(_LONGEST_REQUEST)
            before = set(table.opened)
            answer = table.answer(request, client[0], _outside(), time.monotonic())
            for protocol, outside in set(table.opened) - before:
                rule = opened_port("tcp" if protocol == TCP else "udp", outside, table.opened[protocol, outside])
                subprocess.run(["nft", "-f", "-"], input=rule, text=True, check=True)
            if answer:
                listening.sendto(answer, client)


def _outside() -> str:
    addresses = psutil.net_if_addrs()[OUTSIDE_DEVICE]
    return next(address.address for address in addresses if address.family == socket.AF_INET)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
