"""A volunteer's network port that delivers only some of its groups: selection among one's own work slots.

Everything else of the volunteer is honest, so each group it delivers is valid. Works in the simulator and over sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.passing_port import PassingPort
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.swarm import signals

STRETCH = 8
"""Groups of which one is delivered, unless a port is made with another number."""

Choice = Callable[[RolloutGroup], float]
"""The group of a stretch with the lowest value is delivered."""


def _reward(group: RolloutGroup) -> float:
    return sum(completion.reward for completion in group.completions)


def _tokens(group: RolloutGroup) -> float:
    return float(sum(len(completion.tokens) for completion in group.completions))


CHOICES: Mapping[str, Choice] = MappingProxyType(
    {
        "lowest-reward": _reward,
        "highest-reward": lambda group: -_reward(group),
        "shortest": _tokens,
        "longest": lambda group: -_tokens(group),
        "every-eighth": lambda group: float(group.slot % STRETCH),
    }
)
"""Name → value by which a volunteer chooses."""


class SelectingPort(PassingPort):
    """Publishes one group of each stretch; everything else passes."""

    def __init__(self, port: NetworkPort, choice: Choice, stretch: int = STRETCH) -> None:
        super().__init__(port)
        self._choice = choice
        self._stretch = stretch
        self._held: dict[Digest, tuple[signals.Publish, RolloutGroup]] = {}
        self._chosen: set[Digest] = set()
        self._withheld: set[Digest] = set()

    @property
    def withheld(self) -> int:
        """Number of groups withheld."""
        return len(self._withheld)

    def send(self, message: control.ToNetwork) -> None:
        """Send a message to the node, unless it is a group that is withheld or not decided on yet."""
        if not isinstance(message, signals.Publish):
            super().send(message)
            return
        opened = open_envelope(message.envelope, now=None)
        if not isinstance(opened.body, RolloutGroup) or opened.digest in self._chosen:
            super().send(message)
        elif opened.digest not in self._withheld:
            self._held[opened.digest] = message, opened.body
            if len(self._held) == self._stretch:
                self._decide()

    def _decide(self) -> None:
        digest = min(self._held, key=lambda held: self._choice(self._held[held][1]))
        self._chosen.add(digest)
        self._withheld.update(self._held.keys() - {digest})
        message, _ = self._held[digest]
        self._held.clear()
        super().send(message)


def selecting(name: str, *, stretch: int = STRETCH) -> Callable[[NetworkPort], SelectingPort]:
    """The wrapper of a volunteer's network that delivers one of `stretch` groups, chosen by this value."""
    return lambda port: SelectingPort(port, CHOICES[name], stretch)
