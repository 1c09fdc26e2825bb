"""Dishonest volunteers for simulations: each replaces an honest one's network port, and changes what it publishes.

To test another attack, write a function from a port to a port and add it to `CHEATS`.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
import numpy as np

from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.passing_port import PassingPort
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.rollout_group import Completion, RolloutGroup
from p2prl.sim.selecting_port import selecting
from p2prl.swarm import signals

_DIGITS = 10
"""Token ids below this are digits in every small model of the project."""

_CLAIMED_LOGPROB = -6.0
"""What a liar claims for each token: an unlikely sample weighs most in training."""

_COPIES = 8
"""Times that a flood publishes each of its groups."""

_HEARD = 64
"""Groups of others that a copier remembers."""


@dataclass(frozen=True, slots=True)
class Cheat:
    """What a dishonest volunteer knows."""

    identity: Identity
    run: bytes
    rng: random.Random
    heard: deque[RolloutGroup] = field(default_factory=lambda: deque(maxlen=_HEARD))
    """Newest groups of others: every volunteer gets all messages."""


Rewrite = Callable[[Cheat, RolloutGroup], Iterator[RolloutGroup]]
"""What is published instead of an honest group."""


class PublishingPort(PassingPort):
    """A network port that publishes something else in place of each group; everything else passes."""

    def __init__(self, port: NetworkPort, publish: Callable[[Opened, RolloutGroup], Iterator[bytes]]) -> None:
        """`publish` gets the envelope of each group and the group in it, and gives envelopes."""
        super().__init__(port)
        self._publish = publish

    def send(self, message: control.ToNetwork) -> None:
        """Send a message, or what replaces it."""
        if isinstance(message, signals.Publish):
            opened = open_envelope(message.envelope, now=None)
            if isinstance(opened.body, RolloutGroup):
                for envelope in self._publish(opened, opened.body):
                    super().send(signals.Publish(envelope))
                return
        super().send(message)


def fabricated(group: RolloutGroup, rng: random.Random) -> RolloutGroup:
    """The group with tokens out of nothing, every second completion claimed right."""
    completions = []
    for number, honest in enumerate(group.completions):
        tokens = _tokens(honest)
        tokens[:-1] = [rng.randrange(_DIGITS) for _ in tokens[:-1]]
        completions.append(_lying(honest, tokens, reward=float(number % 2)))
    return msgspec.structs.replace(group, completions=tuple(completions))


def _fabricated(cheat: Cheat, group: RolloutGroup) -> Iterator[RolloutGroup]:
    yield fabricated(group, cheat.rng)


def _edited(cheat: Cheat, group: RolloutGroup) -> Iterator[RolloutGroup]:
    """The last token before the end is changed; what was right is claimed wrong, and the reverse."""
    completions = []
    for honest in group.completions:
        tokens = _tokens(honest)
        place = max(0, len(tokens) - 2)
        tokens[place] = (tokens[place] + 1 + cheat.rng.randrange(_DIGITS - 1)) % _DIGITS
        completions.append(_lying(honest, tokens, reward=1.0 - honest.reward))
    yield msgspec.structs.replace(group, completions=tuple(completions))


def _copied(cheat: Cheat, group: RolloutGroup) -> Iterator[RolloutGroup]:
    """Another volunteer's group, in a slot of one's own, many times."""
    if not cheat.heard:
        return
    source = cheat.rng.choice(cheat.heard)
    for copy in range(_COPIES):
        yield msgspec.structs.replace(source, slot=group.slot, seconds=float(copy))


def _repeated(cheat: Cheat, group: RolloutGroup) -> Iterator[RolloutGroup]:
    """One's own valid group, many times."""
    del cheat
    for copy in range(_COPIES):
        yield msgspec.structs.replace(group, seconds=float(copy))


def _rewriting(rewrite: Rewrite) -> Callable[[NetworkPort, Cheat], NetworkPort]:
    def port(inner: NetworkPort, cheat: Cheat) -> NetworkPort:
        def publish(opened: Opened, group: RolloutGroup) -> Iterator[bytes]:
            signed = opened.sent_ms / 1000
            return (seal(cheat.identity, made, run=cheat.run, now=signed) for made in rewrite(cheat, group))

        return PublishingPort(inner, publish)

    return port


CHEATS: Mapping[str, Callable[[NetworkPort, Cheat], NetworkPort]] = MappingProxyType(
    {
        "fabricated": _rewriting(_fabricated),
        "edited": _rewriting(_edited),
        "copied": _rewriting(_copied),
        "selected": lambda port, _: selecting("highest-reward")(port),
        "withheld": lambda port, _: selecting("lowest-reward", stretch=2)(port),
        "repeated": _rewriting(_repeated),
    }
)
"""Name → the port of a volunteer that cheats so."""

FORGED = frozenset({"fabricated", "edited", "copied"})
"""Cheats none of whose groups is the seeded draw of its slot."""


def mixed(count: int) -> tuple[str, ...]:
    """`count` cheats of all kinds in turn."""
    return tuple(itertools.islice(itertools.cycle(CHEATS), count))


def _tokens(completion: Completion) -> list[int]:
    return [int(token) for token in np.frombuffer(completion.tokens, dtype="<u4")]


def _lying(honest: Completion, tokens: list[int], *, reward: float) -> Completion:
    claimed = np.full(len(tokens), _CLAIMED_LOGPROB, dtype="<f2")
    return Completion(np.asarray(tokens, dtype="<u4").tobytes(), claimed.tobytes(), honest.finished, reward)
