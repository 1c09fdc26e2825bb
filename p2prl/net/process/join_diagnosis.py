"""Why a newcomer reaches no peer of its run, in sentences: from what its dials and its links showed. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from p2prl.errors import UnreachableError
from p2prl.net.transports.tcp_trial import Outcome
from p2prl.plain_text import counted

_FRESH = "Ask for a fresh join link."

_PACKETS = (
    "Packets of full size may be lost on the way, as in a VPN or a tunnel: try without it, or lower the MTU"
    " (Linux: sudo ip link set dev DEVICE mtu 1280)."
)

_WEB_ALONE = (
    "A firewall or proxy that lets web traffic alone through does so: try another network, such as a phone's. If it is"
    " the same there, another program has the port: ask for a fresh join link."
)

_FILTERED = (
    "Either those peers are off, or this network lets web traffic alone through (TCP 443): try another network, such as"
    " a phone's. If it works there, ask for a link with a peer at port 443; if it is the same, for a fresh join link."
)

_SEEN: tuple[tuple[Outcome, str, str], ...] = (
    (Outcome.SHORT, "a peer greets at {places}, and packets of full size to it are lost", _PACKETS),
    (Outcome.GREETED, "a peer greets at {places}, and the encrypted handshake does not complete", _PACKETS),
    (
        Outcome.ACCEPTED,
        "something accepts the connection at {places}, and does not greet as a peer does",
        _WEB_ALONE,
    ),
    (Outcome.NO_ANSWER, "nothing answers at {places}", _FILTERED),
    (Outcome.REFUSED, "no program listens at {places}", f"Its learner has ended, or has moved. {_FRESH}"),
    (
        Outcome.UNKNOWN_NAME,
        "the name in {places} is not known to this network",
        "Check the connection to the internet and its DNS; p2prl doctor does. Else ask for a fresh join link.",
    ),
)
"""Outcomes of dials, those that say most first: a clause, and a remedy."""


def unreachable(outcomes: Mapping[str, Outcome]) -> UnreachableError:
    """The error of a start at which no peer answered; `outcomes` has what a trial of each address of the link saw."""
    for outcome, clause, remedy in _SEEN:
        places = [address for address, seen in outcomes.items() if seen is outcome]
        if places:
            seen = clause.format(places=" and ".join(_place(address) for address in places[:2]))
            return UnreachableError(f"no peer of the run answered: {seen}", remedy=remedy)
    unrouted = [address for address, seen in outcomes.items() if seen is Outcome.NO_ROUTE]
    if any("/ip6/" in address for address in unrouted) and not all("/ip6/" in address for address in unrouted):
        return UnreachableError(
            "no peer of the run answered: this machine has no way to any address of the link that can be tried",
            remedy="Connect this machine to a network; p2prl doctor says what it has.",
        )
    if unrouted:
        family = "IPv6" if all("/ip6/" in address for address in unrouted) else "IPv4"
        other = "IPv4" if family == "IPv6" else "IPv6"
        return UnreachableError(
            f"no peer of the run answered: this machine has no way to {family} addresses, and the link has no others"
            " that can be tried",
            remedy=f"Connect this machine to a network with {family}, or ask for a link with an {other} address of a"
            " public peer (p2prl seed --public).",
        )
    return UnreachableError(
        f"no peer of the run answered at {', '.join(outcomes)}",
        remedy=f"Check your connection and firewall. {_FRESH}",
    )


def no_manifest(*, links: int, other_runs: int, knows_run: bool) -> UnreachableError:
    """The error of a start at which a minute passed without the run's manifest. `links` are to peers of this run,
    `other_runs` counts peers that answered for another one, `knows_run` is as in `control.Status`."""
    if links:
        return UnreachableError(
            f"{counted(links, 'peer')} of this run answered, and none sent the run's description within a minute",
            remedy=f"Start again: they may be newcomers too. {_PACKETS}",
        )
    if other_runs or not knows_run:
        seen = "but for another run than the link's" if other_runs else "and knows nobody of the link's run"
        return UnreachableError(
            f"a peer of the link answers, {seen}",
            remedy="Copy the whole link again: one wrong character between @ and ? names another run. If it is copied "
            "right, a new run has begun there: ask for its link.",
        )
    return UnreachableError(
        "no peer of this run answered within a minute",
        remedy="Ask for a fresh join link: the peers in this one may be gone. If this key also runs elsewhere "
        "(a copied home folder), stop one of the two: peers answer only one.",
    )


def _place(address: str) -> str:
    """Host and port of a multiaddr, as people write them."""
    parts = address.split("/")
    return f"{parts[2]} port {parts[4]}" if len(parts) > 4 else address
