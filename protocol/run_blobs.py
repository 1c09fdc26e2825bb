"""Files and data of a run, by name, and which of them each role downloads. Pure.

A volunteer gets what sampling needs: configuration, tokenizer and the prompts of data tasks. Answers and a researcher's
own scorer go to those who score, and to seeders, which only pass them on.
"""

from __future__ import annotations

import json

from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import DataSet, RunFile, RunManifest

THIRD_PARTY_SCORERS = frozenset({"math-verify", "reasoning-gym", "verifiers", "function"})
"""Scorers that run code which this project did not bring, by their names in a data set's scoring."""


def prompts_name(task: str) -> str:
    """Name of a data task's packed prompts."""
    return f"prompts/{task}"


def answers_name(task: str) -> str:
    """Name of a data task's packed rows."""
    return f"answers/{task}"


def code_name(task: str) -> str:
    """Name of a data task's own scorer."""
    return f"code/{task}"


def blobs_for(manifest: RunManifest, role: Role, *, runs_code: bool = False) -> tuple[RunFile, ...]:
    """What a node of this role downloads besides policies.

    `runs_code` says that a validator's owner agreed to run third-party code. Without it, it takes neither a
    researcher's own scorer nor the answers that only third-party code can compare with.
    """
    return manifest.files + data_blobs(manifest, role, runs_code=runs_code)


def data_blobs(manifest: RunManifest, role: Role, *, runs_code: bool = False) -> tuple[RunFile, ...]:
    """The data among `blobs_for`."""
    blobs = []
    for data in manifest.data_sets:
        blobs.append(RunFile(prompts_name(data.task), data.prompts))
        scores = role is Role.VALIDATOR and (runs_code or not is_third_party(data))
        if scores or role in (Role.LEARNER, Role.SEEDER):
            blobs.append(RunFile(answers_name(data.task), data.answers))
            if data.code is not None:
                blobs.append(RunFile(code_name(data.task), data.code))
    return tuple(blobs)


def is_third_party(data: DataSet) -> bool:
    """Whether scoring a task runs code that p2prl did not bring: a researcher's own, or another library's.

    A scoring that cannot be read counts as such: nobody can score with it.
    """
    try:
        scorers = {reward["scorer"] for reward in json.loads(data.scoring)["rewards"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        return True
    return data.code is not None or not scorers.isdisjoint(THIRD_PARTY_SCORERS)
