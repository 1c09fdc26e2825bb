"""The validators benchmark: what honest, lazy, lying and copying validators earn in one simulated run.

All validators replay every group of the same run, on virtual time, and the leaderboard is folded from the learner's
ledger as anybody would.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import require
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.scoreboard.ledger.total_rows import Validator
from p2prl.sim.swarm_config import SwarmConfig
from p2prl_lab.sim.dishonest_validators import DISHONEST_JUDGES
from p2prl_lab.sim.validated_swarm import ValidatedSwarm

_MODEL_SEED = 1


@dataclass(frozen=True, kw_only=True)
class ValidatorBenchConfig:
    """A simulated run with validators."""

    volunteers: int = 4
    updates: int = 3
    kinds: tuple[str, ...] = ("honest", "lazy", "lying", "copying")
    """One validator of each."""
    seed: int = 0

    def __post_init__(self) -> None:
        require("volunteers", self.volunteers, 1 <= self.volunteers <= 64, "1 to 64")
        require("updates", self.updates, 1 <= self.updates <= 1_000, "1 to 1000")
        known = {"honest", *DISHONEST_JUDGES}
        require("kinds", self.kinds, bool(self.kinds) and set(self.kinds) <= known, f"among {', '.join(sorted(known))}")


@dataclass(frozen=True, kw_only=True)
class ValidatorRow:
    """One validator at the end of the run."""

    validator: str
    """Kind."""
    verdicts: int
    """Verdicts that it signed."""
    in_ledger: int
    """Verdicts that entered the ledger."""
    paid_tokens: int
    credited_tokens: int
    """Tokens of all credited groups of the run. Verdicts on the last of them come too late for the ledger."""


def run_validator_bench(
    config: ValidatorBenchConfig, *, on_progress: Callable[[str, float], None] | None = None
) -> list[ValidatorRow]:
    """One row for each validator, in the order of `kinds`."""
    with tempfile.TemporaryDirectory() as folder:
        swarm = ValidatedSwarm(
            SwarmConfig(volunteers=config.volunteers, updates=config.updates, seed=config.seed),
            tiny_model("chain4", seed=_MODEL_SEED),
            Path(folder),
            validators=config.kinds,
        )
        swarm.run(on_progress=lambda share: None if on_progress is None else on_progress("simulated run", share))
        board = swarm.board()
    credited = sum(person.tokens for person in board.people.values())
    rows = []
    for key, kind in swarm.kinds.items():
        row, audit = board.validators.get(key, Validator(last_ms=0)), swarm.audits[key]
        rows.append(
            ValidatorRow(
                validator=kind,
                verdicts=audit.replayed,
                in_ledger=row.passed_groups + row.failed_groups,
                paid_tokens=row.tokens,
                credited_tokens=credited,
            )
        )
    return rows
