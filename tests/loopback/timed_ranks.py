"""Trainings over ranks that are timed, in a fork whose own processes are forks: `python -m tests.loopback.timed_ranks`.

Each of these processes would import torch and transformers for seconds, to train for less than one.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from p2prl.bench.ranks import benchmark
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.update_engine import EngineSettings
from p2prl.planning import rank_profile
from p2prl.planning.rank_plans import fit, rank_plans
from p2prl.ranks import processes
from p2prl_lab.testing.forked_roles import FORKING, run_fork
from tests.loopback.program import ENVIRONMENT


def timed_in_fork(what: str, argument: object) -> Any:
    """What the function of this name returns, from JSON to JSON."""
    words = (what, json.dumps(argument))
    done = run_fork(words, ENVIRONMENT, timeout_s=300, module="tests.loopback.timed_ranks")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bench(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the ranks benchmark."""
    return [asdict(row) for row in benchmark.run_ranks_bench(benchmark.RanksBenchConfig(**config))]


def profile(model: str) -> list[dict[str, Any]]:
    """Each plan of two ranks that a model can be trained by, as it was timed; none without time for any."""
    settings = EngineSettings(temperature=1.0, optimizer=OptimizerConfig())
    host = rank_profile.Host(model=Path(model), settings=settings, attention="sdpa", threads=2)
    found = rank_profile.profile(host, rank_plans(2), row_tokens=12).probes
    assert rank_profile.profile(host, rank_plans(2), row_tokens=12, budget_s=0.0).probes == []
    rows = []
    for plan in dict.fromkeys(each.plan.parallel for each in found):
        probes = [each for each in found if each.plan.parallel == plan]
        rows.append(
            {
                "plan": plan.name,
                "zero": plan.zero,
                "seconds": [each.seconds for each in probes],
                "checkpointing": [each.plan.checkpointing for each in probes],
                "fit": sum(fit(probes)),
            }
        )
    return rows


if __name__ == "__main__":
    vars(processes)["subprocess"] = FORKING
    for module in (benchmark, rank_profile):
        vars(module)["multiprocessing"] = SimpleNamespace(get_context=lambda _: multiprocessing.get_context("fork"))
    FUNCTIONS: dict[str, Callable[[Any], Any]] = {"bench": bench, "profile": profile}
    sys.stdout.write(json.dumps(FUNCTIONS[sys.argv[1]](json.loads(sys.argv[2]))))
