"""Fleet of a planned run: its model, its learner and its machines, as a TOML file describes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from p2prl.config.toml_tables import parse, read_small, read_toml
from p2prl.errors import ConfigError, require
from p2prl.planning.model_shapes import KnownModel, model_named
from p2prl.protocol import limits

MOST_MACHINES = 5_000
"""Machines of a fleet. More would take minutes to simulate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """What is trained: the table `[run]`."""

    model: str = "7b"
    """A size of `p2prl.planning.model_shapes`; empty for a run that is observed."""
    group_size: int = 8
    """G: completions of a group."""
    groups_per_update: int = 16
    """R."""
    prompt_tokens: int = 256
    """Mean length of a prompt."""
    completion_tokens: int = 1024
    """Mean length of a completion."""
    length_spread: float = 0.5
    """Standard deviation of the logarithm of a group's seconds."""
    staleness: int = 64
    """S: updates."""
    publish_every: int = 1
    """κ: updates between versions."""

    def __post_init__(self) -> None:
        if self.model:
            model_named(self.model)
        longest, largest, stalest = limits.MAX_COMPLETION_TOKENS, limits.MAX_GROUP_SIZE, limits.MAX_STALENESS
        require("group_size", self.group_size, 1 <= self.group_size <= largest, f"1 to {largest}")
        require("groups_per_update", self.groups_per_update, 1 <= self.groups_per_update <= 4096, "1 to 4096")
        require("prompt_tokens", self.prompt_tokens, 0 <= self.prompt_tokens <= 131_072, "0 to 131072")
        require("completion_tokens", self.completion_tokens, 1 <= self.completion_tokens <= longest, f"1 to {longest}")
        require("length_spread", self.length_spread, 0.0 <= self.length_spread <= 2.0, "0 to 2")
        require("staleness", self.staleness, 1 <= self.staleness <= stalest, f"1 to {stalest}")
        most = self.staleness + 1
        require("publish_every", self.publish_every, 1 <= self.publish_every <= most, f"1 to {most}, staleness and one")

    @property
    def known_model(self) -> KnownModel:
        """The model's shape."""
        return model_named(self.model)

    @property
    def row_tokens(self) -> int:
        """Mean length of a completion with its prompt."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def version_bytes(self) -> float:
        """Weights of a version, in 16 bits."""
        return 2.0 * self.known_model.parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLearner:
    """Where it is trained: the table `[learner]`."""

    card: str = ""
    """A card of `p2prl.planning.card_speeds`; p2prl trains on one."""
    update_s: float = 0.0
    """Measured seconds of training an update, without replays; 0 predicts them from the card."""
    replay_s: float = 0.0
    """Measured seconds in which one group is replayed; 0 predicts them from the card."""
    replayers: int = 0
    """Further cards of this kind that replay groups (`p2prl learn --replayers`); 0 replays on the card that trains."""
    upload_mbit: float = 100.0
    """Its uplink."""

    def __post_init__(self) -> None:
        require("replayers", self.replayers, 0 <= self.replayers <= 64, "0 to 64")
        for name in ("update_s", "replay_s"):
            require(name, value := getattr(self, name), 0.0 <= value <= 1e6, "0 to 1000000 seconds")
        require("upload_mbit", self.upload_mbit, 0.0 < self.upload_mbit <= 1e6, "above 0, at most 1000000")
        if not self.card and not self.update_s:
            raise ConfigError(
                "the learner has neither a card nor update_s",
                remedy='Add to [learner]: card = "h100", or update_s = the seconds that an update of yours takes.',
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineRow:
    """Machines of one kind: an entry of `[[machines]]`."""

    name: str
    count: int = 1
    card: str = ""
    """A card of `p2prl.planning.card_speeds`, of which the speed is predicted."""
    tokens_per_s: float = 0.0
    """Measured speed with all slots at work."""
    measured: Path | None = None
    """Output of `p2prl bench machine --json` on such a machine; beside the fleet's file if the path is relative."""
    slots: int = 0
    """Groups at once; 0: as many as the card's memory has room for, or four where the speed is measured."""
    download_mbit: float = 100.0
    upload_mbit: float = 10.0
    share_of_time: float = 1.0
    """Share of the time in which it samples."""
    session_hours: float = 8.0
    """Mean time from its coming to its leaving, where it is not there all the time."""
    acceptance: float = 1.0
    """Share of its groups that pass the learner's check."""
    price: float = 1.0
    """What an hour of one costs, in a unit of one's own."""

    def __post_init__(self) -> None:
        where = f"machine {self.name!r}: "
        require(f"{where}count", self.count, 1 <= self.count <= MOST_MACHINES, f"1 to {MOST_MACHINES}")
        require(f"{where}slots", self.slots, 0 <= self.slots <= 256, "0 to 256")
        require(f"{where}tokens_per_s", self.tokens_per_s, 0.0 <= self.tokens_per_s <= 1e9, "0 or more")
        for name in ("download_mbit", "upload_mbit"):
            require(f"{where}{name}", value := getattr(self, name), 0.0 < value <= 1e6, "above 0, at most 1000000")
        require(f"{where}session_hours", self.session_hours, 0.01 <= self.session_hours <= 1e5, "0.01 to 100000")
        require(f"{where}price", self.price, 0.0 < self.price <= limits.MAX_PRICE, "above 0, at most 1000000")
        for name in ("share_of_time", "acceptance"):
            require(f"{where}{name}", value := getattr(self, name), 0.0 < value <= 1.0, "above 0, at most 1")
        given = [name for name in ("card", "tokens_per_s", "measured") if getattr(self, name)]
        if len(given) != 1:
            raise ConfigError(
                f"{where}{'two speeds: ' + ' and '.join(given) if given else 'no speed'}",
                remedy='Give one of card = "rtx4090", tokens_per_s = 900, or measured = "machine.json".',
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """A planned run with everything that works on it."""

    learner: PlannedLearner
    machines: tuple[MachineRow, ...]
    run: PlannedRun = field(default_factory=PlannedRun)

    def __post_init__(self) -> None:
        total = sum(row.count for row in self.machines)
        require("count of all machines", total, 1 <= total <= MOST_MACHINES, f"1 to {MOST_MACHINES}")


def read_fleet(path: Path) -> Fleet:
    """The fleet of a TOML file. `ConfigError` names the line, key or file that is wrong."""
    return parse(Fleet, read_toml(path), where=path.name)


def measured_speed(path: Path, model: KnownModel) -> tuple[float, str]:
    """(tokens a second, where it is from) of a file of `p2prl bench machine --json`.

    The measured model nearest in size counts. Its speed is scaled by the size of the weights, which decoding reads for
    every token.
    """
    remedy = "Write it on such a machine: p2prl bench machine --models 494m --dtype bfloat16 --json > machine.json"
    try:
        rows = json.loads(read_small(path))["speed"]
        found = [(float(row["parameters"]), float(row["tokens_per_s"])) for row in rows]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", remedy=remedy) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"{path} is no output of p2prl bench machine --json", remedy=remedy) from error
    found = [(size, speed) for size, speed in found if 0 < size < 1e15 and 0 < speed < 1e9]
    if not found:
        raise ConfigError(f"{path} has no measured speed", remedy=remedy)
    size, speed = min(found, key=lambda each: max(each[0], model.parameters) / min(each[0], model.parameters))
    scaled = speed * size / model.parameters
    return scaled, f"{path.name}: {speed:,.0f} tokens/s at {size / 1e9:.3g} billion parameters, by size"
