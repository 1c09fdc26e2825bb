"""An environment that is a WebAssembly module, as all that sample, check or score episodes see it.

The module sees an episode in its order, from a fresh instance: reset, then each turn. It may keep what it likes in its
memory, and still says the same for the same seed and turns. To spare the way from the beginning, the newest instances
are kept and continued; an instance that somebody continues is nobody else's, so threads do not meet in one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from p2prl.errors import LocalProtocolError
from p2prl.tasks.task import FAILED, Score
from p2prl.tasks.wasm.runtime import ModuleEpisode, ModuleFaultError, Program

_KEPT = 16
"""Instances to continue, of 8 MiB at most each. Reading a transcript needs one."""

_Key = tuple[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class WasmEnvironment:
    """The environment of a compiled module. A fault of the module ends the episode, with a reward of 0."""

    name: str
    program: Program
    _kept: OrderedDict[_Key, ModuleEpisode] = field(default_factory=OrderedDict, repr=False, compare=False)

    def opening(self, seed: int) -> str:
        """The module's opening. `ModuleFaultError` where it has none: the slots of such seeds hold no work."""
        if not 0 <= seed < 1 << 63:
            raise LocalProtocolError("a prompt seed is outside 0..2^63 - 1")
        try:
            episode = self.program.episode(seed)
        except ModuleFaultError as fault:
            raise ModuleFaultError(
                f"the environment {self.name} has no opening for the seed {seed}: {fault}"
            ) from fault
        self._keep((seed, ()), episode)
        return episode.opening

    def reply(self, seed: int, turns: Sequence[str]) -> str | None:
        """What the module says after the turns; None at the end, and after a fault."""
        seen = tuple(turns)
        try:
            episode = self._after(seed, seen[:-1])
            message = episode.step(seen[-1])
        except ModuleFaultError:
            return None
        self._keep((seed, seen), episode)
        return message

    def score(self, seed: int, turns: Sequence[str], finished: bool) -> Score:
        """The module's reward. A turn that a limit ended is not shown to it."""
        seen = tuple(turns) if finished else tuple(turns[:-1])
        try:
            episode = self._after(seed, seen)
            return Score(episode.reward(finished)) if episode.ended == finished else FAILED
        except ModuleFaultError:
            return FAILED

    def _after(self, seed: int, turns: tuple[str, ...]) -> ModuleEpisode:
        """The episode after these turns."""
        episode = self._kept.pop((seed, turns), None)
        if episode is None:
            episode = self.program.episode(seed)
            for turn in turns:
                episode.step(turn)
        return episode

    def _keep(self, key: _Key, episode: ModuleEpisode) -> None:
        self._kept[key] = episode
        while len(self._kept) > _KEPT:
            with suppress(KeyError):  # another thread was faster
                self._kept.popitem(last=False)
