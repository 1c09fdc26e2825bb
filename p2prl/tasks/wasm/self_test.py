"""Self-test of an environment that a new run will bring: its openings and its answers to odd turns, played twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.plain_text import counted
from p2prl.tasks.environment import MAX_TURNS
from p2prl.tasks.wasm.runtime import FUEL, ModuleEpisode, ModuleFaultError, Program, from_text
from p2prl.tasks.wasm.wasm_environment import WasmEnvironment

_SEEDS = tuple(k * 0x4F1BBCDCBFA53E0B % (1 << 63) for k in range(32))
"""Spread over all 63 bits; 0 is one of them."""

_ODD_TURNS = ("", "0", "1", "a", "#", "+-*/", "\n", "the quick brown fox", "é😀", "9" * 40, "x" * 4_096)
"""What an untrained policy may write; the opening and the last message are tried too."""

_BINARY = b"\0asm"


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    """An environment of a new run, tried."""

    task: str
    weight: float
    """Its share in the mix."""
    module: bytes
    environment: WasmEnvironment
    notice: str
    """What the self-test measured."""


def plan_environment(task: str, weight: float, content: bytes) -> EnvironmentPlan:
    """The environment of a file's content, a module or its text (WAT). `ConfigError` when no run could use it."""
    try:
        module = content if content.startswith(_BINARY) else from_text(content)
        environment = WasmEnvironment(task, Program(module))
    except RemoteProtocolError as error:
        raise ConfigError(
            f"the environment {task} cannot be used: {error}",
            remedy="docs/tasks.md says what a module needs, and how to build one without debug information.",
        ) from error
    played = list[_Outcome]()
    for first, second in zip(_outcomes(environment.program), _outcomes(Program(module)), strict=True):
        if first != second:
            raise ConfigError(
                f"the environment {task} said {first.said[-1][:60]!r}, and {second.said[-1][:60]!r} the second time",
                remedy="Report this, with the module: nothing in it can make it differ.",
            )
        if first.fault:
            after = f", after the turn {first.turn[:20]!r}" if first.turn is not None else ""
            raise ConfigError(
                f"the environment {task} fails for the seed {first.seed}{after}: {first.fault}",
                remedy="Have it end the episode, with a reward of 0, at whatever it cannot read: an untrained policy "
                "writes such turns.",
            )
        played.append(first)
    most = max(outcome.fuel for outcome in played)
    notice = (
        f"Environment {task}: {counted(len(module), 'byte')}; {counted(len(played), 'episode')} played twice alike, "
        f"with {most:,} of {FUEL:,} fuel at most."
    )
    return EnvironmentPlan(task, weight, module, environment, notice)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One tried episode."""

    seed: int
    turn: str | None
    """The turn that was repeated; None for an episode cut off in its first one."""
    said: tuple[str, ...]
    reward: float
    fuel: int
    fault: str


def _outcomes(program: Program) -> Iterator[_Outcome]:
    """Episodes of each seed: one without a turn, and of each odd turn one in which it is repeated to the end."""
    for seed in _SEEDS:
        first = _played(program, seed, None)
        yield first
        for turn in (*_ODD_TURNS, *first.said):
            yield _played(program, seed, turn)


def _played(program: Program, seed: int, turn: str | None) -> _Outcome:
    said: list[str] = []
    episode: ModuleEpisode | None = None
    try:
        episode = program.episode(seed)
        said.append(episode.opening)
        for _ in range(0 if turn is None else MAX_TURNS):
            message = episode.step(turn or "")
            if message is None:
                break
            said.append(message)
        reward = episode.reward(episode.ended)
    except ModuleFaultError as fault:
        return _Outcome(
            seed, turn, tuple(said) or ("",), 0.0, FUEL if episode is None else episode.fuel_used, str(fault)
        )
    return _Outcome(seed, turn, tuple(said), reward, episode.fuel_used, "")
