"""Run a validator from a join link until Ctrl-C or the end of the run, with its panel and its progress line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from p2prl.cli.commands.worker_session import (
    LedgerMirror,
    StatusFile,
    end_session,
    introduce_run,
    session,
    shown_prepare,
)
from p2prl.cli.commands.worker_start import NETWORK, SCORERS, TOKENIZER, WorkerStart
from p2prl.cli.interrupts import Interrupts
from p2prl.cli.views.console import LiveView, say
from p2prl.cli.views.quantities import own_ledger_text, share_text, version_text
from p2prl.cli.views.worker_introduction import validator_introduction
from p2prl.clock import SystemClock
from p2prl.config.machine_limits import enforce_memory
from p2prl.errors import ConfigError
from p2prl.net.process.handle import NetworkHandle
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.reward_text import reward_model_of
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.ledger.escrow import ESCROW_VERDICTS
from p2prl.validator.own_ledger import FILE_NAME as OWN_LEDGER
from p2prl.validator.own_ledger import OwnLedger

if TYPE_CHECKING:
    from p2prl.protocol.manifests import RunManifest
    from p2prl.validator.service import Audit
    from p2prl.validator.verdicts import Judge


def validate_run(
    start: WorkerStart,
    *,
    rate: float,
    own_ledger: bool,
    run_scorer: bool,
    as_json: bool,
    replace_judge: Callable[[Judge], Judge] | None = None,
) -> None:
    """Validate until interrupted or until the run ends.

    With `own_ledger` it keeps receipts of its own. `replace_judge` is for experiments with dishonest validators.
    """
    link, worker, limits = start.link, start.worker, start.request.limits.machine
    view = LiveView(quiet=as_json)
    controls = start.controls()
    with view.shown(), controls.running():
        view.phase("importing torch")

        from p2prl.config.roles import build_validator, prepare_replay
        from p2prl.models.hardware.device_choice import open_device, use_threads
        from p2prl.validator.service import ValidatorConfig
        from p2prl.validator.verdicts import judge

        chosen = open_device(start.request.device)
        use_threads(start.request.threads)
        screen = _Screen(view, start, str(chosen), rate, run_scorer=run_scorer)
        screen.receipts = OwnLedger(worker.identity, link.run, SystemClock()) if own_ledger else None
        enforce_memory(limits, on_cpu=chosen.type == "cpu")
        prepare = partial(
            prepare_replay,
            run=link.run,
            device=chosen,
            runs_scorer=run_scorer,
            baselines=worker.run_directory(link.run) / "noise.json",
            launch_tokenizer=start.launches.get(TOKENIZER),
            launch_scorers=start.launches.get(SCORERS),
        )
        validator = build_validator(
            link,
            worker,
            ValidatorConfig(rate=rate),
            prepare=shown_prepare(prepare, view),
            base=start.base,
            runs_scorer=run_scorer,
            on_manifest=screen.introduce,
            on_audit=screen.on_audit,
            on_notice=say,
            judge=judge if replace_judge is None else replace_judge(judge),
            own_ledger=screen.receipts,
        )
        interrupts = Interrupts(validator.stop, validator.stop, finishing="Stopping after this batch.")
        with session(worker.run_directory(link.run), limits, interrupts):
            view.phase("finding the run")
            network = start.network(Role.VALIDATOR, runs_code=run_scorer)
            start.seal()
            controls.steer(validator.owner, interrupts, device=str(chosen))
            finished = validator.run(screen.mirror.around(NetworkHandle(network, launch=start.launches.get(NETWORK))))
    end_session(
        screen.status, interrupts, finished=finished, as_json=as_json, kept="Stopped. Verdicts already sent stay valid."
    )


class _Screen:
    """Shows a validator's progress in the live view and in its status file."""

    def __init__(self, view: LiveView, start: WorkerStart, device: str, rate: float, *, run_scorer: bool) -> None:
        link, worker = start.link, start.worker
        self.status = StatusFile(worker, link, "validator")
        self.mirror = LedgerMirror(worker, link, countersigns=True)
        self._view = view
        self._link = link
        self._worker = worker
        self._device = device
        self._rate = rate
        self._limits = start.request.limits.machine
        self._run_scorer = run_scorer
        self._has_base = start.base is not None
        self.receipts: OwnLedger | None = None
        """The validator's own ledger, if it keeps one."""

    def introduce(self, manifest: RunManifest) -> int:
        """Show the run before any of it is downloaded; returns the disk for the network process."""
        if self.receipts is not None and reward_model_of(manifest.reward):
            raise ConfigError(
                "this run has a reward model that its learner alone has, and receipts state rewards",
                remedy="Leave out --own-ledger: validators check tokens here.",
            )
        identity, folder = self._worker.identity, self._worker.directory
        plan = introduce_run(
            manifest,
            Role.VALIDATOR,
            self._worker.run_directory(self._link.run),
            lambda needs, disk: validator_introduction(
                manifest, needs, disk, identity, folder, self._device, self._rate, run_scorer=self._run_scorer
            ),
            self._limits,
            runs_code=self._run_scorer,
            on_cpu=self._device == "cpu",
            has_base=self._has_base,
            mirrors=True,
        )
        if self.receipts is not None:
            own_bytes = plan.mirror_bytes // 2
            self.receipts.begin(self._worker.run_directory(self._link.run) / OWN_LEDGER, max_bytes=own_bytes)
            plan = replace(plan, mirror_bytes=plan.mirror_bytes - own_bytes)
        self.mirror.begin(plan)
        self._view.phase("downloading the run's files and a policy")
        return plan.network_bytes

    def on_audit(self, audit: Audit) -> None:
        """Show the newest state; the startup phases stay until a policy has arrived."""
        self.status.write(audit_document(audit))
        if audit.version >= 0:
            identity = self._worker.identity
            self._view.update(lambda: audit_panel(self._link.name, identity, audit), lambda: audit_line(audit))
        elif detail := share_text(*audit.files):
            self._view.phase("downloading the run's files and a policy", detail)


def audit_document(audit: Audit) -> dict[str, object]:
    """A validator's part of its status file and of `--json`."""
    return {
        "state": audit.resting or "validating",
        "version": audit.version,
        "groups_seen": audit.seen,
        "groups_replayed": audit.replayed,
        "verdicts_passed": audit.passed,
        "verdicts_failed": audit.failed,
        "groups_waiting": audit.waiting,
        "checks_agreed": audit.checks_agreed,
        "checks_contradicted": audit.checks_contradicted,
        "checks_failed": audit.checks_failed,
        "rewards_agreed": audit.rewards_agreed,
        "rewards_disputed": audit.rewards_disputed,
        "rewards_unclear": audit.rewards_unclear,
        "own_receipts": audit.own_receipts,
        "own_tokens": audit.own_tokens,
    }


def audit_line(audit: Audit) -> str:
    """A validator's state in one line."""
    return (
        (f"{audit.resting}  " if audit.resting else "")
        + f"{version_text(audit.version)}  seen {audit.seen:,}  replayed {audit.replayed:,}  passed {audit.passed:,}"
        f"  failed {audit.failed:,}  waiting {audit.waiting:,}"
        + (f"  checked {_checks(audit)}" if _checks(audit) else "")
        + (f"  rewards {_rewards(audit)}" if _rewards(audit) else "")
        + (f"  own ledger {own_ledger_text(audit.own_receipts, audit.own_tokens)}" if audit.own_receipts else "")
    )


def audit_panel(name: str, identity: Identity, audit: Audit) -> RenderableType:
    """A validator's state, redrawn in place."""
    table = Table.grid(padding=(0, 2))
    table.add_row(
        name, f"{display_name(identity.public_key)} ({identity.peer_id[-8:]})   {audit.resting or 'validating'}"
    )
    table.add_row("policy", version_text(audit.version))
    table.add_row("groups", f"{audit.seen:,} seen   {audit.waiting:,} waiting for their replay")
    table.add_row("verdicts", f"{audit.replayed:,} replayed   {audit.passed:,} passed   {audit.failed:,} failed")
    if checks := _checks(audit):
        table.add_row("checked", f"{checks} with the learner's own replay")
        table.add_row(
            "credit", f"the newest {ESCROW_VERDICTS} verdicts stay in escrow until more agree, or the run ends"
        )
    if rewards := _rewards(audit):
        table.add_row("rewards", f"{rewards} with the learner's receipts")
    if audit.own_receipts:
        table.add_row("ledger", f"{own_ledger_text(audit.own_receipts, audit.own_tokens)}, signed by this key")
    table.add_row("stop", "Ctrl-C stops after the current batch")
    return table


def _checks(audit: Audit) -> str:
    """How many of the own verdicts the learner has checked; empty before the first."""
    if not audit.checks_agreed + audit.checks_contradicted + audit.checks_failed:
        return ""
    against = f", {audit.checks_contradicted:,} disagree" if audit.checks_contradicted else ""
    failed = f", {audit.checks_failed:,} NOT PROVEN" if audit.checks_failed else ""
    return f"{audit.checks_agreed:,} agree{against}{failed}"


def _rewards(audit: Audit) -> str:
    """How many rewards were compared; empty before the first."""
    if not audit.rewards_agreed + audit.rewards_disputed + audit.rewards_unclear:
        return ""
    unclear = f", {audit.rewards_unclear:,} unclear" if audit.rewards_unclear else ""
    disputed = f", {audit.rewards_disputed:,} DISAGREE" if audit.rewards_disputed else ""
    return f"{audit.rewards_agreed:,} agree{unclear}{disputed}"
