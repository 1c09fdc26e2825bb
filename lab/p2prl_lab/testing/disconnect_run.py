"""Disconnect a volunteer from a real swarm, and check that its offline work is used after it reconnects.

Progress during the cut depends on the machine, so the run goes on until that work has been used.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2prl.protocol.ledger_messages import ReceiptState
from p2prl_lab.testing.run_audit import audit_run, record_everything, recorded_steps
from p2prl_lab.testing.swarm_processes import (
    LISTEN,
    SwarmProcesses,
    go_on,
    rows,
    spools,
    status_of,
    stop_sending,
    wait_until,
)

_VOLUNTEER = ("--threads", "1", "--share", "0.3")
"""All groups sampled meanwhile are checked: some are enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DisconnectPlan:
    """Duration of the cut, and of the wait after it."""

    cut_s: float
    patience_s: float = 90.0
    """Longest wait after the cut for an update with the work done during it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DisconnectReport:
    """Results of the work done while cut off."""

    sampled: int
    """Groups of the cut-off volunteer that were sampled during the cut."""
    verified: int
    expired: int
    trained_on: int
    versions_sampled: int
    """Policy versions it used during the cut: the one it had, and possibly one whose download was complete."""
    updates_meanwhile: int
    """Updates of the learner during the cut, with the other volunteer's work."""
    back_s: float
    """From the end of the cut to the first receipt of such a group."""
    staleness_max: int
    """Staleness of the groups that were trained on, in updates."""


def disconnect_volunteer(
    swarm: SwarmProcesses, run: Path, plan: DisconnectPlan, *, say: Callable[[str], None]
) -> DisconnectReport:
    """Freeze the network process and daemon of one of two volunteers, thaw them, and audit the run at its end."""
    record_everything(run)
    learner = swarm.start("learner", "learn", str(run), "--updates", "0", *LISTEN)
    link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text(), seconds=60, what="a join link")
    homes = [swarm.folder / "homes" / name for name in ("stays", "leaves")]
    stays, leaves = (swarm.start(home.name, "join", link, *_VOLUNTEER, *LISTEN, home=home) for home in homes)
    home = homes[1]
    wait_until(lambda: status_of(home).get("groups", {}).get("verified", 0) > 0, seconds=90, what="a first receipt")

    frozen = [p for p in (leaves.network(), leaves.daemon()) if p is not None]
    assert len(frozen) == 2
    spool = spools(home)[0]
    stop_sending(frozen)
    try:
        # Read after the freeze: a group from before it may be delivered already.
        before, step_before = _digests(spool), recorded_steps(run)
        say(f"cut off at step {step_before} with {len(before)} groups sampled")
        threading.Event().wait(plan.cut_s)
        during = _digests(spool) - before
        step_after = recorded_steps(run)
    finally:
        go_on(frozen)
    say(f"back at step {step_after} with {len(during)} groups more")
    assert leaves.is_alive, leaves.log[-2000:]
    assert len(during) > 0, "it stopped sampling when it was cut off"
    assert step_after > step_before, "the learner made no update"
    began = time.monotonic()
    wait_until(lambda: _receipts(run, during), seconds=plan.patience_s, what="a receipt for work done while cut off")
    back_s = time.monotonic() - began

    wait_until(lambda: _trained_on(run, during), seconds=plan.patience_s, what="an update with such work")
    for role in (learner, stays, leaves):
        role.process.send_signal(signal.SIGINT)
        assert role.wait(60) == 130, role.log[-2000:]
    swarm.await_end(15)
    audit = audit_run(run, [path for each in homes for path in spools(each)], has_ended=False)
    states = [ReceiptState(audit.receipts[digest][1].state) for digest in during if digest in audit.receipts]
    used = dict(rows(run / "journal.db", "SELECT digest, used_step FROM groups WHERE state = 'used'"))
    versions = dict(rows(spool, "SELECT digest, version FROM groups"))
    step_of = dict(rows(run / "journal.db", "SELECT version, step FROM policies"))
    ages = {digest: used[digest] - step_of[versions[digest]] for digest in during if digest in used}
    logged = [json.loads(line)["staleness"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(age in logged[used[digest]] for digest, age in ages.items()), "metrics hide the staleness"
    return DisconnectReport(
        sampled=len(during),
        verified=states.count(ReceiptState.VERIFIED),
        expired=states.count(ReceiptState.EXPIRED),
        trained_on=len(ages),
        versions_sampled=len({versions[digest] for digest in during}),
        updates_meanwhile=step_after - step_before,
        back_s=round(back_s, 2),
        staleness_max=max(ages.values(), default=0),
    )


def _digests(spool: Path) -> set[bytes]:
    return {digest for (digest,) in rows(spool, "SELECT digest FROM groups")}


def _receipts(run: Path, digests: set[bytes]) -> bool:
    settled = {d for (d,) in rows(run / "journal.db", "SELECT digest FROM groups WHERE state != 'stored'")}
    return bool(settled & digests)


def _trained_on(run: Path, digests: set[bytes]) -> bool:
    return bool({d for (d,) in rows(run / "journal.db", "SELECT digest FROM groups WHERE state = 'used'")} & digests)
