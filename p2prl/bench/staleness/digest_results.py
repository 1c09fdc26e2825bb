"""Results written before result versions existed, whose lines hold a digest of the code instead.

Only results of the last commit that wrote digests (3812427) are reused, as version 1, because this code gives the same
figures. `digests_of_3812427.json` holds its digests, task → method → digest, under Python 3.11, for every loss and for
the options and additions of the committed tables.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec

from p2prl.bench.results.result_version import result_version
from p2prl.bench.staleness.methods import parse_method
from p2prl.bench.training.environments import environment_by_name
from p2prl.errors import ConfigError

_DIGESTS = Path(__file__).with_name("digests_of_3812427.json")


class DigestSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a run except its seed, in the old format with a digest."""

    task: str
    method: str
    delay: str
    updates: int
    learning_rate: float
    evaluate_every: int
    evaluation_prompts: int
    final_prompts: int
    code: str

    def version(self) -> str:
        """The result version of a known digest; empty, which matches no result, for any other."""
        wanted = _meaning(self.task, self.method)
        known = (method for method, digest in _digests().get(self.task, {}).items() if digest == self.code)
        if wanted is None or all(_meaning(self.task, method) != wanted for method in known):
            return ""
        band = {"band": 1} if "+band" in self.method else {}
        return result_version(training=1, warm_start=1, environment=1, loss=1, **band)


@functools.cache
def _digests() -> dict[str, dict[str, str]]:
    return msgspec.json.decode(_DIGESTS.read_bytes(), type=dict[str, dict[str, str]])


@functools.cache
def _meaning(task: str, method: str) -> Any:
    """Canonical value of a method's text; None for a text that is no longer a method."""
    try:
        parsed = parse_method(method, max_completion_tokens=environment_by_name(task).max_new_tokens)
    except ConfigError:
        return None
    objective = parsed.objective
    return objective.spec.name, objective.config, objective.advantage, objective.aggregation, dict(parsed.additions)
