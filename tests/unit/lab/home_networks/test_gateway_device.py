"""The UPnP side of the lab's routers: what it answers to searches and actions, and that the router opens the port."""

from __future__ import annotations

import asyncio
import re
import xml.etree.ElementTree as ElementTree

import pytest

from p2prl_lab.home_networks.gateway_device import Control, description, search_answer
from p2prl_lab.home_networks.packets import TCP
from p2prl_lab.home_networks.port_requests import PortTable

HOST, ROUTER, OUTSIDE = "192.168.1.10", "192.168.1.1", "44.131.7.1"
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
    """Asks the router's table without a network."""

    def __init__(self) -> None:
        super().__init__(ROUTER)
        self.table = PortTable()

    async def _ask(self, request: bytes) -> bytes:
        return self.table.answer(request, HOST, OUTSIDE, 1.0)


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
    assert re.findall(r"<NewExternalIPAddress>(.*?)</", text) == [OUTSIDE]
    assert "<NewNATEnabled>1</NewNATEnabled>" in act("GetNATRSIPStatus")[1]
    assert act("AddPortMapping", mapping("TCP", 4444, 5000))[0] == 200
    assert control.table.opened == {(TCP, 4444): (HOST, 5000)}
    status, text = act("AddPortMapping", mapping("TCP", 4444, 6000))
    assert (status, re.findall(r"<errorCode>(\d+)<", text)) == (500, ["718"]), "it is another's"
    assert act("DeletePortMapping")[0] == 200
    assert act("ForceTermination")[0] == 500
