"""hivemind's DHT node, hardened against forged containers of records.

`DHTNode` validates single records, but trusts the containers around them. Each of these attacks was seen or constructed
against release 1.1.12, and each let one malicious peer hide every honest record of a key from its readers:

* a dictionary with one invalid entry is refused as a whole;
* an answer's own expiry is unsigned, and an infinite one ends the search at the attacker;
* a signed value that is not msgpack, or an entry with a foreign type, makes the search hang (`directory_records`
  refuses both);
* nothing bounds the keys or the owners under a key, and an answer over 4 MiB is never sent
  (`bounded_storage` keeps records within bounds, and answers with a sample of them).
"""

from __future__ import annotations

import math
from typing import Any

from p2prl.clock import Clock
from p2prl.net.ports import PeerGuard
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.bounded_storage import bounded_storage
from p2prl.net.transports.hivemind.directory_records import OwnerSignedRecords
from p2prl.protocol.identity import Identity


async def start_dht_node(p2p: Any, identity: Identity, clock: Clock, guard: PeerGuard | None = None) -> Any:
    """A `DHTNode` on `p2p` that stores and returns owner-signed records only.

    It has no caches: every read fetches the newest records anyway. With a guard, records of linked peers are the last
    to go when a key is full.
    """
    node = await light_import.load().DHTNode.create(
        p2p=p2p,
        record_validator=OwnerSignedRecords(identity, clock),
        client_mode=False,
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        cache_refresh_before_expiry=0,
    )
    _filter_dictionaries(node.protocol)
    _distrust_expiry(node.protocol)
    node.protocol.storage = bounded_storage(guard)
    return node


def _filter_dictionaries(protocol: Any) -> None:
    """Keep a dictionary's valid entries instead of refusing all, and discard the sender's metadata."""
    record_type = light_import.load().DHTRecord

    def keep_valid(key: bytes, dictionary: Any) -> bool:
        validator, dump = protocol.record_validator, protocol.serializer.dumps
        entries = [(owner, entry.value, entry.expiration_time) for owner, entry in dictionary.data.items()]
        dictionary.clear()
        dictionary.maxsize, dictionary.latest_expiration_time = math.inf, -math.inf
        with dictionary.freeze():
            for owner, value, expires_at in entries:
                if validator.validate(record_type(key, dump(owner), value, expires_at)):
                    dictionary.store(owner, value, expires_at)
        return True

    protocol._validate_dictionary = keep_valid


def _distrust_expiry(protocol: Any) -> None:
    """Take an answer's expiry from its signed entries."""
    find = protocol.call_find

    async def call_find(peer: Any, keys: Any) -> Any:
        answer = await find(peer, keys)
        if answer is None:
            return None
        checked = {}
        for key, (found, nearest) in answer.items():
            if found is not None:
                latest = getattr(found.value, "latest_expiration_time", -math.inf)
                found = type(found)(found.value, latest) if latest > -math.inf else None
            checked[key] = found, nearest
        return checked

    protocol.call_find = call_find
