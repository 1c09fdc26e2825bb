"""The choice among listed runs: which ones a machine could serve, which one needs it most, and when to move on.

A run with V volunteers that misses M more wants W = V + M of them. With the shares of all volunteers in proportion to
the wants every run has the same V / W, the fill. A newcomer takes a run by chance, weighted by what it lacks, since
thousands read the same listings at once and must not all take the same run. One that serves a run above the mean fill
moves with the probability at which the excess would leave, halved; so crowds do not swing (selfish load balancing,
Berenbrink et al., SIAM J. Comput. 37(4), 2007). A move must also bring the machine to a run that is filled less with it
than the one it leaves is now. Pure: chance is an argument.

Claims are the learners' own. What a run claims to miss counts up to a bound by the volunteers it has, and listings
that share a key or, as the index says, a subnet share one part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from p2prl.protocol.identity import PeerId
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.listing import OpenedListing, run_id
from p2prl.quantity_text import size_text
from p2prl.swarm.peers.dial_rules import DialRules

MOST_MISSING = 16
"""Volunteers that a run without any is believed to miss at most, and nine more for each that it has: a false claim
draws no crowd at once, and a run that has a tenth of what it wants gets its part all the same."""

UNKNOWN_MISSING = 4
"""Volunteers that a run without a forecast counts as missing: enough for new runs to share the volunteers they find."""

DAMPING = 0.5
"""Part of the excess that leaves at a time."""

LEAST_EXCESS = 0.3
"""Volunteers above its part from which a run gives some away: with less, machines would move for nothing."""

SMALL = "small"
"""Preference for the smaller half of the runs; every other one is a word of a run's name, goal or base model."""


@dataclass(frozen=True)
class Offer:
    """A listed run, as a machine that looks for one sees it."""

    opened: OpenedListing
    crowd: int = 1
    """Listings that share its subnet, as the index says."""
    left_out: str = ""
    """Why this machine does not take it; empty for a run that it could serve."""

    @cached_property
    def run(self) -> str:
        """The run's digest as text."""
        return run_id(self.opened.run)

    @cached_property
    def owner(self) -> PeerId:
        """Peer id of its learner."""
        return self.opened.owner

    @property
    def volunteers(self) -> int:
        """Volunteers that it claims to have."""
        return self.opened.listing.volunteers

    @cached_property
    def wanted(self) -> int:
        """Volunteers that it would have if it had all that it is believed to miss, at least one."""
        listing = self.opened.listing
        missing = UNKNOWN_MISSING if listing.missing is None else listing.missing
        return max(1, listing.volunteers + min(missing, MOST_MISSING + 9 * listing.volunteers))

    @property
    def lacking(self) -> int:
        """Volunteers that it lacks, at least 0."""
        return max(0, self.wanted - self.volunteers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a machine may give to a run, bytes; 0 where nothing bounds it."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    dials: DialRules | None = None
    """Addresses that strangers may name to it; None for all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the owner of a machine wants."""

    prefer: tuple[str, ...] = ()
    only: frozenset[str] = frozenset()
    """Owners whose runs alone are taken; empty for all."""
    blocked: frozenset[str] = frozenset()
    """Owners and runs that are never taken."""


def left_out(opened: OpenedListing, machine: Machine, wishes: Wishes) -> str:
    """Why a machine does not take a listed run, as the end of a sentence; empty when it could."""
    listing, run, owner = opened.listing, run_id(opened.run), opened.owner
    if run in wishes.blocked:
        return "you have blocked this run"
    if owner in wishes.blocked:
        return "you have blocked its owner"
    if wishes.only and owner not in wishes.only:
        return "its owner is none of those you allow"
    if listing.state == "ended":
        return "it has ended"
    if listing.state == "paused":
        return "its learner is down for now"
    if machine.memory_bytes and listing.memory_bytes > machine.memory_bytes:
        return f"too little memory: it takes {size_text(listing.memory_bytes)} of {size_text(machine.memory_bytes)}"
    if machine.disk_bytes and listing.disk_bytes > machine.disk_bytes:
        return f"too little disk: it takes {size_text(listing.disk_bytes)} of {size_text(machine.disk_bytes)}"
    if not dialed_link(opened, machine).bootstrap:
        return "its join link leads to no public address"
    return ""


def dialed_link(opened: OpenedListing, machine: Machine) -> JoinLink:
    """The join link of a listed run, without the addresses that no stranger may name. Somebody who gets a link from a
    person trusts it; this one was chosen by a machine, and could lead to its own services or its router."""
    link, rules = opened.link, machine.dials
    if rules is None:
        return link
    allowed = [each for each in link.bootstrap if rules.allows(each, PeerId(each.rpartition("/p2p/")[2]))]
    return replace(link, bootstrap=tuple(allowed))


def by_need(offers: Sequence[Offer], wishes: Wishes) -> list[Offer]:
    """The runs that a machine could serve, those that it is most likely to take first."""
    weights = _weights(_preferred(offers, wishes))
    return sorted(
        (offer for offer in offers if not offer.left_out),
        key=lambda offer: (-weights.get(offer.run, 0.0), offer.volunteers / offer.wanted, offer.run),
    )


def choose(offers: Sequence[Offer], wishes: Wishes, draw: float) -> Offer | None:
    """The run that a machine takes; None when it could serve none. `draw` is uniform on [0, 1)."""
    able = _preferred(offers, wishes)
    return _drawn(able, _weights(able), draw)


def moved(
    current: Offer,
    offers: Sequence[Offer],
    wishes: Wishes,
    draws: tuple[float, float],
    *,
    empty: Collection[str] = (),
) -> Offer | None:
    """The run that a machine goes on to from `current` although that one goes on; None to stay.

    `draws` are two numbers uniform on [0, 1): whether it moves, and where to. `empty` are runs that lately have nobody:
    where their part is less than a machine, one with company goes there all the same, for its part of the time.
    """
    able = _preferred(offers, wishes)
    if not able:
        return None
    everyone = [*able, *([] if any(offer.run == current.run for offer in able) else [current])]
    fill = sum(offer.volunteers for offer in everyone) / sum(offer.wanted for offer in everyone)
    alone = [each for each in able if each.run in empty and each.volunteers == 0 and fill * each.wanted < 1.0]
    if alone and current.volunteers > 1:
        # One machine a look for all that say so together: it costs nothing to list many runs that have nobody.
        spare = sum(max(0, offer.volunteers - 1) for offer in everyone)
        if draws[0] < (current.volunteers - 1) / current.volunteers / spare:
            return _drawn(alone, _shared(alone, lambda _: 1.0), draws[1])
    excess = current.volunteers - fill * current.wanted
    now = current.volunteers / current.wanted
    damping = 1.0 if any(offer.volunteers == 0 for offer in able) else DAMPING  # one without any waits for the first
    if excess < LEAST_EXCESS or draws[0] >= damping * excess / max(1, current.volunteers):
        return None
    below = {
        offer.run: room
        for offer in able
        if offer.run != current.run
        and (offer.volunteers + 1) / offer.wanted < now
        and (room := fill * offer.wanted - offer.volunteers) > 0
    }
    return _drawn(able, _shared(able, lambda offer: below.get(offer.run, 0.0)), draws[1])


def _preferred(offers: Sequence[Offer], wishes: Wishes) -> list[Offer]:
    """The runs that could be served and fit most of the preferences, as long as one of them lacks volunteers."""
    able = [offer for offer in offers if not offer.left_out]
    if not able or not wishes.prefer:
        return able
    sizes = sorted(offer.opened.listing.parameters for offer in able)
    middle = sizes[(len(sizes) - 1) // 2]
    fits = [sum(_fits(offer, word, middle) for word in wishes.prefer) for offer in able]
    best = [offer for offer, number in zip(able, fits, strict=True) if number == max(fits)]
    return best if any(offer.lacking for offer in best) else able


def _fits(offer: Offer, word: str, middle: int) -> bool:
    listing = offer.opened.listing
    if word.casefold() == SMALL:
        return listing.parameters <= middle
    return word.casefold() in f"{listing.name} {listing.goal} {listing.base_model}".casefold()


def _weights(able: Sequence[Offer]) -> Mapping[str, float]:
    """Chances of the runs, by what they lack; where none lacks anything, by what they want."""
    lack = _shared(able, lambda offer: float(offer.lacking))
    return lack if any(lack.values()) else _shared(able, lambda offer: float(offer.wanted))


def _shared(able: Sequence[Offer], weight: Callable[[Offer], float]) -> dict[str, float]:
    """The weights of runs, where those of one owner share a part, and so do those of one subnet."""
    of_owner = Counter(offer.owner for offer in able)
    return {offer.run: weight(offer) / max(offer.crowd, of_owner[offer.owner]) for offer in able}


def _drawn(able: Sequence[Offer], weights: Mapping[str, float], draw: float) -> Offer | None:
    total = sum(weights.values())
    left = draw * total
    chosen = None
    for offer in able if total > 0 else ():
        if weights[offer.run] > 0:
            chosen, left = offer, left - weights[offer.run]
            if left < 0:
                break
    return chosen
