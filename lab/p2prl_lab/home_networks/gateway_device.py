"""A home router's UPnP side: an Internet Gateway Device (UPnP IGD 1) that opens ports by SOAP, as a program.

    python -m p2prl_lab.home_networks.gateway_device 192.168.1.1

It runs on the home's router. Every mapping it grants is asked of `port_mapper` there, on a port where no machine of the
home looks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import sys
from typing import Any, cast

from p2prl_lab.home_networks.packets import TCP, UDP
from p2prl_lab.home_networks.port_requests import ANSWER_BYTES, GATEWAY_PORT, address_request, port_request

HTTP_PORT = 5_000
_SSDP = ("239.255.255.250", 1_900)
_UDN = "uuid:5a7e1f00-0000-1000-8000-44c0ffee0001"
_SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
_DEVICES = tuple(
    f"urn:schemas-upnp-org:device:{kind}:1" for kind in ("InternetGatewayDevice", "WANDevice", "WANConnectionDevice")
)
_TARGETS = frozenset({"ssdp:all", "upnp:rootdevice", _UDN, _SERVICE, *_DEVICES})
_ROUTER_S = 2.0
_REQUEST_S = 5.0
_MAX_BODY_BYTES = 64 * 1024
_PROTOCOLS = {"TCP": TCP, "UDP": UDP}
_CONFLICT, _NO_ACTION = 718, 401


def search_answer(question: bytes, host: str) -> bytes:
    """The answer to an SSDP question; empty to what asks for another kind of device."""
    lines = question.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    target = headers.get("st", "")
    if not lines[0].startswith("M-SEARCH") or target not in _TARGETS:
        return b""
    named = _DEVICES[0] if target == "ssdp:all" else target
    return (
        "HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\nEXT:\r\nSERVER: lab UPnP/1.0\r\n"
        f"ST: {named}\r\nUSN: {_UDN}::{named}\r\nLOCATION: http://{host}:{HTTP_PORT}/device.xml\r\n\r\n"
    ).encode()


def description(host: str) -> str:
    """The device's description: a gateway with a WAN device with a connection with one service."""
    service = (
        f"<serviceList><service><serviceType>{_SERVICE}</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1"
        "</serviceId><controlURL>/control</controlURL><eventSubURL>/event</eventSubURL><SCPDURL>/service.xml</SCPDURL>"
        "</service></serviceList>"
    )
    inner = service
    for number, kind in enumerate(reversed(_DEVICES)):
        facts = f"<deviceType>{kind}</deviceType><friendlyName>lab</friendlyName><manufacturer>lab</manufacturer>"
        inner = f"<device>{facts}<modelName>lab</modelName><UDN>{_UDN[:-1]}{number}</UDN>{inner}</device>"
        inner = inner if kind == _DEVICES[0] else f"<deviceList>{inner}</deviceList>"
    version = "<specVersion><major>1</major><minor>0</minor></specVersion>"
    root = f"{version}<URLBase>http://{host}:{HTTP_PORT}/</URLBase>{inner}"
    return f'<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">{root}</root>'


class Control:
    """The service's actions, carried out by the home's router."""

    def __init__(self, router: str) -> None:
        self._router = (router, GATEWAY_PORT)

    async def answer(self, action: str, body: str) -> tuple[int, str]:
        """HTTP status and SOAP envelope for an action and the envelope of its arguments."""
        match action:
            case "GetNATRSIPStatus":
                return _done(action, NewRSIPAvailable=0, NewNATEnabled=1)
            case "GetStatusInfo":
                return _done(action, NewConnectionStatus="Connected", NewLastConnectionError="ERROR_NONE", NewUptime=60)
            case "GetExternalIPAddress":
                outside = (await self._ask(address_request()))[8:12]
                return _done(action, NewExternalIPAddress=socket.inet_ntoa(outside))
            case "AddPortMapping":
                return await self._map(action, body)
            case "DeletePortMapping":
                return _done(action)
        return _fault(_NO_ACTION)

    async def _map(self, action: str, body: str) -> tuple[int, str]:
        wanted, inside = (int(_argument(body, name)) for name in ("NewExternalPort", "NewInternalPort"))
        answer = await self._ask(port_request(_PROTOCOLS[_argument(body, "NewProtocol")], inside, wanted))
        granted = int.from_bytes(answer[10:12], "big")
        return _done(action) if granted == wanted else _fault(_CONFLICT)

    async def _ask(self, request: bytes) -> bytes:
        """One question to the router and its answer."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            asking.connect(self._router)
            async with asyncio.timeout(_ROUTER_S):
                await loop.sock_sendall(asking, request)
                return await loop.sock_recv(asking, ANSWER_BYTES)


def _argument(body: str, name: str) -> str:
    found = re.search(rf"<{name}[^>]*>([^<]*)</{name}>", body)
    if found is None:
        raise ValueError(f"no {name}")
    return found[1]


def _done(action: str, **results: Any) -> tuple[int, str]:
    values = "".join(f"<{name}>{value}</{name}>" for name, value in results.items())
    return 200, _envelope(f'<u:{action}Response xmlns:u="{_SERVICE}">{values}</u:{action}Response>')


def _fault(code: int) -> tuple[int, str]:
    detail = f'<UPnPError xmlns="urn:schemas-upnp-org:control-1-0"><errorCode>{code}</errorCode></UPnPError>'
    fault = f"<faultcode>s:Client</faultcode><faultstring>UPnPError</faultstring><detail>{detail}</detail>"
    return 500, _envelope(f"<s:Fault>{fault}</s:Fault>")


def _envelope(body: str) -> str:
    soap = "http://schemas.xmlsoap.org/soap/"
    head = f'<s:Envelope xmlns:s="{soap}envelope/" s:encodingStyle="{soap}encoding/">'
    return f'<?xml version="1.0"?>{head}<s:Body>{body}</s:Body></s:Envelope>'


class _Search(asyncio.DatagramProtocol):
    """Answers SSDP questions."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        answer = search_answer(data, self._host)
        if answer and self._transport is not None:
            self._transport.sendto(answer, addr)


async def serve(host: str) -> None:
    """Serve until cancelled."""
    control = Control(host)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError):  # TimeoutError is an OSError
            async with asyncio.timeout(_REQUEST_S):
                status, text = await _response(reader, control, host)
                body = text.encode()
                head = f'HTTP/1.1 {status} Lab\r\nContent-Type: text/xml; charset="utf-8"\r\nConnection: close\r\n'
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()

    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("", _SSDP[1]))
    group = struct.pack("4s4s", socket.inet_aton(_SSDP[0]), socket.inet_aton(host))
    listening.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: _Search(host), sock=listening)
    server = await asyncio.start_server(respond, host, HTTP_PORT)
    await server.serve_forever()


async def _response(reader: asyncio.StreamReader, control: Control, host: str) -> tuple[int, str]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    method, path, _ = head.split(" ", 2)
    if method == "GET":
        return 200, description(host)
    length = re.search(r"(?im)^content-length:\s*(\d+)", head)
    named = re.search(r"(?im)^soapaction:.*#(\w+)", head)
    if length is None or named is None or path != "/control" or int(length[1]) > _MAX_BODY_BYTES:
        raise ValueError("no action")
    body = (await reader.readexactly(int(length[1]))).decode()
    return await control.answer(named[1], body)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
