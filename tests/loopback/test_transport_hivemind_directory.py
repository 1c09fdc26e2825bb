"""The hivemind transport's directory over real daemons: records, forgeries, expiry and clocks."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import pytest

from p2prl.net.transports.hivemind import light_import
from tests.loopback.hivemind_swarm import KEY, Inbox, OffsetClock, run, start, swarm

pytestmark = pytest.mark.loopback


def test_peers_find_each_other_through_one_and_share_records() -> None:
    async def scenario() -> None:
        async with swarm(4) as peers:
            expires_at = time.time() + 60
            for peer in peers:
                assert await peer.put_record(KEY, b"I am " + peer.peer_id.encode(), expires_at)
            expected = {peer.peer_id: b"I am " + peer.peer_id.encode() for peer in peers}
            for peer in peers:
                assert await peer.get_records(KEY) == expected
                assert await peer.get_records(b"another run") == {}
            assert not await peers[1].put_record(KEY, b"older", expires_at - 30)
            assert await peers[1].put_record(KEY, b"newer", expires_at + 30)
            for peer in peers:
                assert (await peer.get_records(KEY))[peers[1].peer_id] == b"newer"
            # The last two know only the first peer, but still reach each other by id.
            inboxes = [Inbox(peer) for peer in peers]
            for sender in peers:
                for receiver, inbox in zip(peers, inboxes, strict=True):
                    if sender is not receiver:
                        await sender.send(receiver.peer_id, b"hello", timeout_s=10)
                        assert await inbox.next() == (sender.peer_id, b"hello")

    run(scenario)


class BelievesAnything:
    """A directory node that neither signs nor checks."""

    def validate(self, record: object) -> bool:
        return True

    def sign_value(self, record: Any) -> bytes:
        return bytes(record.value) + bytes(64)

    def strip_value(self, record: Any) -> bytes:
        return bytes(record.value[:-64])


def test_forged_records_hide_no_honest_ones() -> None:
    async def scenario() -> None:
        async with swarm(3) as (honest, liar, reader):
            now = time.time()
            assert await honest.put_record(KEY, b"true", now + 60)
            node = liar._directory._node
            own = str(liar.peer_id)
            assert not await node.store(KEY, b"forged", now + 120, subkey=str(honest.peer_id))
            protocol = node.protocol
            protocol.record_validator = BelievesAnything()
            protocol._validate_dictionary = lambda key, dictionary: True
            for later, subkey in enumerate((str(honest.peer_id), str(reader.peer_id), own, "nobody", b"", 7)):
                await node.store(KEY, b"forged", now + 120 + later, subkey=subkey)
            await node.store(b"plain", b"forged", now + 120)
            assert await node.get(KEY, latest=True)  # the liar itself holds the forgeries
            assert await reader.get_records(KEY) == {honest.peer_id: b"true"}
            assert await honest.get_records(KEY) == {honest.peer_id: b"true"}
            assert await reader.get_records(b"plain") == {}

    run(scenario)


def test_a_forged_record_container_hides_nothing() -> None:
    async def scenario() -> None:
        async with swarm(4) as (first, second, liar, reader):
            now = time.time()
            for peer in (first, second):
                assert await peer.put_record(KEY, b"true", now + 60)
            protocol = liar._directory._node.protocol
            key = next(iter(protocol.storage.data))
            dictionary = protocol.storage.get(key).value
            entries = dict(dictionary.items())

            def lie(owners: dict[Any, Any], *, maxsize: Any = 1, latest: float = math.inf) -> None:
                dictionary.clear()
                dictionary.maxsize, dictionary.latest_expiration_time = math.inf, latest
                for owner, (value, expires_at) in owners.items():
                    dictionary.store(owner, value, expires_at)
                dictionary.maxsize = maxsize
                protocol.storage.data[key] = type(protocol.storage.data[key])(dictionary, latest)

            expected = {first.peer_id: b"true", second.peer_id: b"true"}
            signer = protocol.record_validator
            record = light_import.load().DHTRecord(key.to_bytes(), b"\xd94" + liar.peer_id.encode(), b"\xc1", now + 60)
            assert len(liar.peer_id) == 0x34
            unpackable = {str(liar.peer_id): (signer.sign_value(record), now + 60)}
            for owners in ({}, unpackable, dict([*entries.items()][:1]), {"x": (b"", now + 99)}):
                for maxsize in (1, math.inf, "many"):
                    lie(owners, maxsize=maxsize if len(owners) < 1 or maxsize != "many" else 1)
                    assert await reader.get_records(KEY) == expected

    run(scenario)


def test_expired_records_are_gone() -> None:
    async def scenario() -> None:
        clock = OffsetClock()
        first = await start()
        second = await start(first.addresses[0], clock=clock)
        try:
            assert await first.put_record(KEY, b"short-lived", time.time() + 30)
            assert first.peer_id in await second.get_records(KEY)
            clock.offset_s = 31
            assert await second.get_records(KEY) == {}
            assert not await first.put_record(KEY, b"dead on arrival", time.time() - 1)
        finally:
            await second.close()
            await first.close()

    run(scenario)


def test_a_wrong_clock_is_measured_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        first = await start()
        clock = OffsetClock()
        clock.offset_s = -20.0
        with caplog.at_level(logging.WARNING, "p2prl.net"):
            second = await start(first.addresses[0], clock=clock)
        assert second._directory.clock_skew_s == pytest.approx(-20, abs=1)
        assert "20.0 s behind" in caplog.text
        assert first._directory.clock_skew_s is None
        await second.close()
        await first.close()

    run(scenario)
