"""Meetings of two peers whose routers refuse strangers: a third peer, which both are linked with, tells each of them
where the other's packets come from, and both dial at once. Each router then takes the other's packets for answers.
libp2p's own hole punching waits for four observers at four addresses; this needs one.

It works for routers that give a machine the same outside port whomever it talks to (RFC 4787, endpoint-independent
mapping), with any filter. A meeting with another kind of router fails, and is not tried for long.

Pure. An address that a peer names is treated like one of the directory, where anybody can write: `dial_rules` says
whether it is dialed, and how often.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from p2prl.protocol.identity import PUBLIC_KEY_BYTES, PeerId, peer_id_of, public_key_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Meeting, MeetingRequest
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.peers.peer_memory import LASTING_ROLES
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

REQUESTS = Rate(per_s=0.5, burst=32.0)
"""Meetings that one peer may ask for: all its neighbors at once, then one every two seconds."""

ALL_REQUESTS = Rate(per_s=50.0, burst=500.0)
"""Meetings arranged for everybody together: two small messages each."""

ADDRESSES_REMEMBERED = 4096
"""Answers of `is_direct_public` that are kept: it is asked about the same few addresses at every turn, and parsing them
took a tenth of a node's time. A node knows fewer addresses than this, and an address is short."""

TRIES = 3
"""Attempts with one peer in quick succession. A router that cannot do it will hardly do it at the fourth."""

_FIRST_WAIT_S = 4.0
"""From an introduction to the first request: a peer that can be dialed is linked by then."""
_RETRY_S = 12.0
_LONGEST_RETRY_S = 600.0
"""After `TRIES` attempts each pause is twice the one before, up to this: routers restart and people move, and nothing
succeeds before the third peer has heard from them at their new address, after up to 35 s of silence."""

_CHECK_S = 2.0
_SAME_MEETING_S = 8.0
"""Both peers may ask for one meeting; the second invitation within this time is the first again."""


@dataclass(slots=True)
class _Wish:
    """A peer that this node would like to meet."""

    next_at: float
    attempts: int = 0


class Meetings:
    """Requests that this node makes, and those that it serves."""

    def __init__(self, own: PeerId, *, capacity: int) -> None:
        self._own = own
        self._capacity = capacity
        self._seen_at: OrderedDict[PeerId, dict[str, str]] = OrderedDict()
        """Where the newest direct connections of each peer come from, by `ip4` and `ip6`."""
        self._wishes: dict[PeerId, _Wish] = {}
        self._invited_at: OrderedDict[tuple[PeerId, bool], float] = OrderedDict()
        self._requests = KeyedBuckets(REQUESTS, capacity=capacity)
        self._all_requests = KeyedBuckets(ALL_REQUESTS, capacity=1)
        self._next = 0.0

    def note(self, peer: PeerId, address: str) -> None:
        """A connection of a peer comes from this multiaddr."""
        if not is_direct_public(address):
            return
        seen = self._seen_at.pop(peer, {})
        self._seen_at[peer] = seen | {address.split("/")[1]: address.partition("/p2p/")[0]}
        if len(self._seen_at) > self._capacity:
            self._seen_at.popitem(last=False)

    def has_seen(self, peer: PeerId, addresses: Iterable[str]) -> bool:
        """Whether a direct connection of the peer came from one of these public addresses."""
        seen = self._seen_at.get(peer, {}).values()
        return any(address.partition("/p2p/")[0] in seen for address in addresses)

    def is_seen(self, peer: PeerId) -> bool:
        """Whether a direct connection of the peer came from a public address."""
        return peer in self._seen_at

    def next_deadline(self) -> float:
        """When the wishes are looked at again; ∞ while there are none."""
        return self._next if self._wishes else math.inf

    def is_due(self, now: float) -> bool:
        """Whether `take_requests` looks at the wishes now."""
        return now >= self._next

    def take_requests(
        self, wanted: Collection[PeerId], hosts: Callable[[], Iterable[PeerId]], now: float
    ) -> list[tuple[PeerId, Wire]]:
        """Requests due for the peers in `wanted`, to one of `hosts()`: linked peers that may see both, the best first.

        `wanted` are peers that this node should have a direct link with, and has not. A host that does not see both is
        silent, so the next attempt is another's.
        """
        if now < self._next:
            return []
        self._next = now + _CHECK_S
        self._wishes = {peer: wish for peer, wish in self._wishes.items() if peer in wanted}
        asked = tuple(hosts()) if wanted else ()
        due: list[tuple[PeerId, Wire]] = []
        for peer in wanted:
            wish = self._wishes.setdefault(peer, _Wish(now + _FIRST_WAIT_S))
            others = [host for host in asked if host != peer]
            if not others or now < wish.next_at:
                continue
            host = others[wish.attempts % len(others)]
            wish.attempts += 1
            wish.next_at = now + min(_RETRY_S * 2 ** max(0, wish.attempts - TRIES + 1), _LONGEST_RETRY_S)
            due.append((host, MeetingRequest(public_key_of(peer))))
        return due

    def on_request(
        self, message: MeetingRequest, source: PeerId, links: Collection[PeerId], now: float
    ) -> list[tuple[PeerId, Wire]]:
        """Invitations to both peers, if both are linked here and seen at public addresses of one family; else none.

        IPv6 is preferred: a firewall has to be opened there, and no address is translated.
        """
        if len(message.peer) != PUBLIC_KEY_BYTES:
            return []
        peer = peer_id_of(message.peer)
        asker, other = self._seen_at.get(source, {}), self._seen_at.get(peer, {})
        family = max(asker.keys() & other.keys(), default="")
        if peer == source or peer not in links or not family:
            return []
        if not (self._requests.take(source, now) and self._all_requests.take(None, now)):
            return []
        # Two hosts may be asked for one meeting: they name the same side. An order of keys needs no agreement.
        own_key = public_key_of(source)
        return [
            (source, Meeting(message.peer, other[family], own_key < message.peer)),
            (peer, Meeting(own_key, asker[family], message.peer < own_key)),
        ]

    def is_new(self, peer: PeerId, now: float, *, by_learner: bool) -> bool:
        """Note an invitation to meet `peer`, by the learner or by another; False when it repeats the last one, or names
        this node."""
        key = peer, by_learner  # a false invitation must not make the learner's look like its repetition
        if peer == self._own or now - self._invited_at.get(key, -_SAME_MEETING_S) < _SAME_MEETING_S:
            return False
        self._invited_at.pop(key, None)
        self._invited_at[key] = now
        if len(self._invited_at) > self._capacity:
            self._invited_at.popitem(last=False)
        return True


def hosts_among(
    direct: Mapping[PeerId, Role | None], is_public: Callable[[PeerId], bool], learner: PeerId | None
) -> list[PeerId]:
    """Peers to ask for meetings, of those with `direct` links and their roles: they see where others are.

    Known-public ones come first, since every home has a direct link with them; among equals the learner, then seeders.
    """
    lasting = {peer: role for peer, role in direct.items() if role in LASTING_ROLES or is_public(peer)}
    return sorted(lasting, key=lambda peer: (not is_public(peer), peer != learner, lasting[peer] is not Role.SEEDER))


@lru_cache(maxsize=ADDRESSES_REMEMBERED)
def is_direct_public(address: str) -> bool:
    """Whether a multiaddr is one of TCP at a public IP address, without a relay."""
    parts = address.split("/")
    if len(parts) < 5 or "p2p-circuit" in parts or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp":
        return False
    try:
        return ipaddress.ip_address(parts[2]).is_global
    except ValueError:
        return False
