"""A learner that is sent forgeries: after a few it checks no more of them, says so, and remembers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from p2prl.net.process import control
from p2prl.protocol.kinds import Kind
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import Completion
from tests.unit.learner.scripted_swarm import ScriptedSwarm, fresh_runs
from tests.unit.learner.small_run import SmallRun, altered, identity

CHEAT = identity("cheat")


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:
        yield make


def forge(swarm: ScriptedSwarm, slots: range) -> None:
    """Deliver groups of invented tokens."""
    run = swarm.small_run
    policy = run.published.newest
    assert policy is not None
    for slot in slots:
        ids = np.asarray([slot % 10] * run.manifest.sampling.max_new_tokens, dtype="<u4")
        invented = Completion(ids.tobytes(), bytes(2 * ids.size), finished=False, reward=1.0)
        group = altered(run.group(policy, CHEAT, slot), completions=(invented,) * run.manifest.sampling.group_size)
        swarm.port.inbox.append(control.EnvelopeArrived(run.sealed(group, CHEAT).raw))


def reasons(swarm: ScriptedSwarm) -> list[str]:
    """Reasons in the receipts of the cheat's groups, in order."""
    receipts = [receipt for body in swarm.port.bodies(Kind.RECEIPTS) for receipt in body.receipts]
    return [receipt.reason for receipt in receipts if receipt.peer == CHEAT.public_key]


def test_a_key_that_forges_is_excluded_told_and_remembered(fresh: Callable[[str], SmallRun]) -> None:
    swarm = ScriptedSwarm(fresh("run"))
    while not swarm.sampled:
        swarm.turn()
    forge(swarm, range(3))
    for _ in range(4):
        swarm.turn()
    assert reasons(swarm) == [RejectionReason.SEED_MISMATCH] * 3
    forge(swarm, range(4, 12))
    swarm.turn()
    swarm.turn()
    assert reasons(swarm)[3:] == [RejectionReason.EXCLUDED] * 4, "told a few times, each a ledger entry"
    assert swarm.learner._inbox._intake.turned_away["excluded"] == 4
    swarm.restart()
    forge(swarm, range(12, 20))
    swarm.turn()
    swarm.turn()
    assert set(reasons(swarm)[7:]) == {RejectionReason.EXCLUDED}
    evidence = swarm.learner._storage.journal.forgeries.evidence(CHEAT.public_key)
    assert len(evidence) == 3
    counts = swarm.learner.counts()
    assert counts["rejected"] == len(reasons(swarm))
    swarm.finish()
    assert swarm.learner.finished, "the others go on"
    swarm.learner.close()


def test_what_waits_of_a_key_when_it_is_excluded_costs_no_replay(
    fresh: Callable[[str], SmallRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2prl.learner.assembly._GROUPS_PER_CHECK", 4)
    swarm = ScriptedSwarm(fresh("run"))
    while not swarm.sampled:
        swarm.turn()
    swarm.port.inbox.clear()
    forge(swarm, range(12))
    for _ in range(6):
        swarm.turn()
    found = reasons(swarm)
    assert len(found) == 12
    assert found.count(RejectionReason.SEED_MISMATCH) <= 4
    assert found.count(RejectionReason.EXCLUDED) >= 8
    swarm.learner.close()
