"""The UPnP side of the lab's routers: what it answers to searches and actions, and that the router opens the port."""

from __future__ import annotations

import asyncio
import random
import re
import xml.etree.ElementTree as ElementTree

import pytest

from p2prl_lab.home_networks.gateway_device import Control, description, search_answer
from p2prl_lab.home_networks.internet import Internet
from p2prl_lab.home_networks.packets import TCP, UDP
from p2prl_lab.home_networks.port_requests import GATEWAY_PORT, PORT, address_request, port_request
from p2prl_lab.home_networks.sites import LineSpeed, make_site, public_address
from tests.unit.lab.home_networks.packet_makers import endpoint, raw_packet

HOST, ROUTER = "192.168.1.10", "192.168.1.1"
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"


def search(target: str) -> bytes:
    return f'M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nST: {target}\r\nMAN: "ssdp:discover"\r\n\r\n'.encode()


@pytest.mark.parametrize(
    "target", [SERVICE, "urn:schemas-upnp-org:device:WANConnectionDevice:1", "upnp:rootdevice", "ssdp:all"]
)
def test_a_search_for_a_gateway_is_told_where_it_describes_itself(target: str) -> None:
    answer = search_answer(search(target), HOST).decode()
    assert answer.startswith("HTTP/1.1 200 OK\r\n")
    assert f"LOCATION: http://{HOST}:5000/device.xml\r\n" in answer
    if target != "ssdp:all":
        assert f"ST: {target}\r\n" in answer


@pytest.mark.parametrize(
    "question", [search("urn:dial-multiscreen-org:service:dial:1"), b"NOTIFY * HTTP/1.1\r\n\r\n", b""]
)
def test_others_are_not_answered(question: bytes) -> None:
    assert search_answer(question, HOST) == b""


def test_the_description_nests_the_three_devices_and_names_the_service() -> None:
    root = ElementTree.fromstring(description(HOST))
    space = "{urn:schemas-upnp-org:device-1-0}"
    path, device = "", root.find(f"{space}device")
    while device is not None:
        path += f"/{device.findtext(f'{space}deviceType', '').split(':')[3]}"
        found = device.findtext(f".//{space}serviceType")
        device = device.find(f"{space}deviceList/{space}device")
    assert path == "/InternetGatewayDevice/WANDevice/WANConnectionDevice"
    assert found == SERVICE


class DirectControl(Control):
    """Asks the lab's router without a network."""

    def __init__(self) -> None:
        super().__init__(ROUTER)
        kinds = {"host": "public", "home": "gateway"}
        rng = random.Random(1)
        sites = [make_site(name, kind, number, LineSpeed(), rng) for number, (name, kind) in enumerate(kinds.items())]
        self.internet = Internet(sites, rng)

    def ask(self, request: bytes, *, port: int = GATEWAY_PORT) -> bytes:
        packet = raw_packet(endpoint(HOST, 40_000), endpoint(ROUTER, port), request, protocol=UDP)
        return b"".join(answer[28:] for _, answer in self.internet.receive("home", packet, 1.0))

    async def _ask(self, request: bytes) -> bytes:
        return self.ask(request)


def mapping(protocol: str, outside: int, inside: int) -> str:
    return (
        f"<NewExternalPort>{outside}</NewExternalPort><NewProtocol>{protocol}</NewProtocol>"
        f"<NewInternalPort>{inside}</NewInternalPort><NewInternalClient>{HOST}</NewInternalClient>"
    )


def test_actions_reach_the_router() -> None:
    control = DirectControl()

    def act(action: str, body: str = "") -> tuple[int, str]:
        return asyncio.run(control.answer(action, body))

    status, text = act("GetExternalIPAddress")
    assert status == 200
    assert re.findall(r"<NewExternalIPAddress>(.*?)</", text) == [".".join(map(str, public_address(1)))]
    assert "<NewNATEnabled>1</NewNATEnabled>" in act("GetNATRSIPStatus")[1]
    assert act("AddPortMapping", mapping("TCP", 4444, 5000))[0] == 200
    packet = raw_packet(endpoint("44.130.7.1", 9), (public_address(1), 4444), b"hello", protocol=TCP)
    control.internet.receive("host", packet, 1.0)
    assert [name for name, _ in control.internet.due(9.0)] == ["home"], "the port is open"
    status, text = act("AddPortMapping", mapping("TCP", 4444, 6000))
    assert (status, re.findall(r"<errorCode>(\d+)<", text)) == (500, ["718"]), "it is another's"
    assert act("DeletePortMapping")[0] == 200
    assert act("ForceTermination")[0] == 500


def test_machines_of_the_home_cannot_ask_by_nat_pmp() -> None:
    control = DirectControl()
    assert control.ask(address_request(), port=PORT) == b""
    assert control.ask(port_request(TCP, 5000, 4444), port=PORT) == b""
    assert control.ask(address_request()) != b""
