"""Connection settings of a node."""

from __future__ import annotations

from dataclasses import dataclass

DIAL_S = 15.0
"""How long a dial may be under way."""

ANSWER_HELLO_S = 2.0
"""A hello is answered unless we greeted the peer within this time: it may have lost the link when we did not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionsConfig:
    """Link, directory and liveness settings.

    Each limit or period is a field, because none follows from another.
    """

    max_neighbors: int = 16
    """Links a node dials up to. With those that others open it has about 24, and that many random neighbors keep a
    swarm of thousands connected when a third of it dies."""
    random_links: int = 6
    """Links a node opens at random before the learner has introduced any peer. They stay beside the introduced ones: a
    learner that is captured, or wrong, cannot choose all of a node's neighbors."""
    own_links: int = 8
    """Links a node opens itself, however many others have opened to it: an attacker can open as many as it likes."""
    max_with_introduced: int = 64
    """Links up to which introduced peers are dialed. A restarted learner introduces others, and no link is dropped."""
    introduction_wait_s: float = 15.0
    """How long a node keeps its other links free for introduced peers: from its start, and from its link with the
    learner."""
    max_links: int = 1_024
    """Links in all, with those that others opened: as many as one learner can greet. In a full table
    `p2prl.swarm.peers.link_admission` shares the places."""
    max_known: int = 4_096
    """Peers in the address book. Anybody can write to the directory."""
    forget_s: float = 900.0
    """A peer whose directory record is older than this is forgotten and no longer dialed."""
    refresh_s: float = 30.0
    """Period of own directory record and lookup while a learner is linked."""
    eager_refresh_s: float = 3.0
    """The same while no learner is linked."""
    hello_s: float = 15.0
    """A hello is repeated this often, as a sign of life and a clock reading."""
    silence_s: float = 35.0
    """A peer silent for longer is dropped."""
    local_run: bool = False
    """Whether the whole run is on this machine: strangers may then name loopback addresses. A node that listens on
    loopback addresses alone finds out by itself."""
