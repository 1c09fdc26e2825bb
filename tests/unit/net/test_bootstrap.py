"""Joining through the bootstrap peers: one that answers is enough, and dead ones delay nobody."""

from __future__ import annotations

import asyncio

import pytest

from p2prl.errors import ConfigError, TransportError, UnreachableError
from p2prl.net.transports.bootstrap import dial_bootstrap
from p2prl.protocol.identity import PeerId
from p2prl.sim.machines import identity_of

ME = identity_of("me").peer_id


def address(name: str, port: int = 4001) -> str:
    return f"/ip4/8.8.4.4/tcp/{port}/p2p/{identity_of(name).peer_id}"


class OnlyDials:
    """A transport that only dials: what each address does is given."""

    def __init__(self, **ports: str) -> None:
        self._does = {f"/tcp/{port[1:]}/": does for port, does in ports.items()}
        self.ended: list[str] = []

    @property
    def peer_id(self) -> PeerId:
        return ME

    async def connect(self, address: str) -> PeerId:
        does = next((does for port, does in self._does.items() if port in address), "answers")
        try:
            if does == "hangs":
                await asyncio.Event().wait()
            if does == "fails":
                raise TransportError("nobody there")
            if does == "breaks":
                raise RuntimeError("a bug")
            return PeerId(address.rpartition("/")[2])
        finally:
            self.ended.append(does)


def test_a_dead_peer_does_not_delay_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.net.transports.bootstrap._GRACE_S", 0.0)
    dialer = OnlyDials(p1="hangs", p2="fails")
    named = [address("a", 1), address("b", 2), address("c", 3)]
    assert asyncio.run(dial_bootstrap(dialer, named)) == 1
    assert sorted(dialer.ended) == ["answers", "fails", "hangs"], "the hanging dial is not left behind"


def test_all_that_answer_count() -> None:
    assert asyncio.run(dial_bootstrap(OnlyDials(p2="fails"), [address("a"), address("b", 2), address("c")])) == 2


def test_nobody_answers() -> None:
    with pytest.raises(UnreachableError, match=r"8\.8\.4\.4"):
        asyncio.run(dial_bootstrap(OnlyDials(p1="fails"), [address("a", 1)]))


def test_nobody_to_dial() -> None:
    assert asyncio.run(dial_bootstrap(OnlyDials(), [])) == 0
    assert asyncio.run(dial_bootstrap(OnlyDials(p1="breaks"), [f"/ip4/8.8.4.4/tcp/1/p2p/{ME}"])) == 0


def test_a_malformed_address_and_a_bug_are_raised() -> None:
    with pytest.raises(ConfigError):
        asyncio.run(dial_bootstrap(OnlyDials(), ["/ip4/8.8.4.4/tcp/1"]))
    with pytest.raises(RuntimeError):
        asyncio.run(dial_bootstrap(OnlyDials(p1="breaks"), [address("a", 1)]))
