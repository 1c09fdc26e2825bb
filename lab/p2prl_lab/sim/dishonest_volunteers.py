"""Dishonest volunteers for simulations: each replaces an honest one's network port, and changes what it publishes.

To test another attack, write a function from a port to a port and add it to `CHEATS`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import msgspec
import numpy as np

from p2prl.net.process.bridge import NetworkPort
from p2prl.protocol.delegation import sign_delegation
from p2prl.protocol.envelope import Opened, seal
from p2prl.protocol.rollout_group import Completion, RolloutGroup
from p2prl.sim.machines import identity_of
from p2prl.sim.selecting_port import selecting
from p2prl.sim.virtual_time import START
from p2prl_lab.sim.cheat import Cheat, PublishingPort
from p2prl_lab.sim.choosing_volunteers import BestVersionPort, OwnersMachinesPort, RotatingKeysPort
from p2prl_lab.sim.crowding_volunteers import starving, stating

_DIGITS = 10
"""Token ids below this are digits in every small model of the project."""

_CLAIMED_LOGPROB = -6.0
"""What a liar claims for each token: an unlikely sample weighs most in training."""

_DELEGATED_MS = 24 * 3600 * 1000

_COPIES = 8
"""Times that a flood publishes each of its groups."""

Rewrite = Callable[[Cheat, RolloutGroup], Iterator[RolloutGroup]]
"""What is published instead of an honest group."""


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


def _poisoned(cheat: Cheat, group: RolloutGroup) -> Iterator[RolloutGroup]:
    """Forged groups of a stolen machine key, whose owner has an honest machine too: it is to be blamed for them."""
    owner, signed_ms = identity_of(f"owner of {cheat.identity.peer_id}"), int(START * 1000)
    for machine in (cheat.identity, cheat.neighbor):
        if machine is not None:
            ends_ms = signed_ms + _DELEGATED_MS
            cheat.send(machine, sign_delegation(owner, machine.public_key, serial=signed_ms, expires_ms=ends_ms))
    yield fabricated(group, cheat.rng)


def _rewriting(rewrite: Rewrite) -> Callable[[NetworkPort, Cheat], NetworkPort]:
    def port(inner: NetworkPort, cheat: Cheat) -> NetworkPort:
        def publish(opened: Opened, group: RolloutGroup) -> Iterator[bytes]:
            signed = opened.sent_ms / 1000
            run = cheat.simulated.run
            return (seal(cheat.identity, made, run=run, now=signed) for made in rewrite(cheat, group))

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
        "best of versions": BestVersionPort,
        "rotating keys": RotatingKeysPort,
        "machines of one owner": OwnersMachinesPort,
        "starving": starving,
        "stating": stating,
        "poisoned": _rewriting(_poisoned),
    }
)
"""Name → the port of a volunteer that cheats so."""

FORGED = frozenset({"fabricated", "edited", "copied", "poisoned"})
"""Cheats none of whose groups is the seeded draw of its slot."""


def mixed(count: int) -> tuple[str, ...]:
    """`count` cheats of all kinds in turn."""
    return tuple(itertools.islice(itertools.cycle(CHEATS), count))


def _tokens(completion: Completion) -> list[int]:
    return [int(token) for token in np.frombuffer(completion.tokens, dtype="<u4")]


def _lying(honest: Completion, tokens: list[int], *, reward: float) -> Completion:
    claimed = np.full(len(tokens), _CLAIMED_LOGPROB, dtype="<f2")
    return Completion(np.asarray(tokens, dtype="<u4").tobytes(), claimed.tobytes(), honest.finished, reward)
