"""A known-public host's answer to "can I be dialed?", over real daemons: ours, and not the daemon's own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from p2prl.net.transports import multiaddrs
from p2prl.net.transports.hivemind import dial_back, transport
from p2prl.net.transports.hivemind.daemon import read_message, sized_message
from p2prl.net.transports.hivemind.dial_back import DialBack, Status
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.swarm.peers.dial_rules import DialRules
from tests.loopback.hivemind_swarm import DAEMON_CONFIG, LOCAL, fresh, run
from tests.unit.net.autonat_oracle import parsed_answer, question

pytestmark = pytest.mark.loopback


async def ask(asker: HivemindTransport, public: HivemindTransport, *named: str) -> tuple[int, str | None]:
    await asker.connect(public.addresses[0])
    reader, writer = await asker._daemon.open_stream(public.peer_id, dial_back.PROTOCOL)
    asked = question(multiaddrs.multihash_of(asker.peer_id), *map(multiaddrs.to_bytes, named))
    writer.write(sized_message(asked))
    status, address = parsed_answer(await read_message(reader))
    writer.transport.abort()
    return status, multiaddrs.from_bytes(address)


def test_a_peer_that_listens_is_found_and_one_that_does_not_hears_no_after_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "DialBack", partial(DialBack, rules=DialRules(is_local=True)))

    async def scenario() -> None:
        config = replace(DAEMON_CONFIG, is_public=True, auto_nat=True)
        public = await HivemindTransport.start(fresh(), listen=LOCAL, daemon_config=config)
        listening, hidden = [
            await HivemindTransport.start(fresh(), listen=listen, daemon_config=DAEMON_CONFIG) for listen in (LOCAL, ())
        ]
        try:
            where = listening.addresses[0].partition("/p2p/")[0]
            assert await ask(listening, public, where) == (Status.OK, where)
            began = asyncio.get_running_loop().time()
            status, _ = await ask(hidden, public, "/ip4/10.0.0.1/tcp/1999")
            took = asyncio.get_running_loop().time() - began
            assert status == Status.DIAL_FAILED
            assert dial_back.ANSWER_S <= took < 3 * dial_back.ANSWER_S, "the daemon's own answer takes 15 s"
        finally:
            for each in (listening, hidden, public):
                await each.close()

    run(scenario)
