"""`p2prl join` and `p2prl validate`. What needs torch is imported once the link is known to be whole."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2prl.cli import crashes
from p2prl.cli.console import Interrupts, View, emit, progress, say
from p2prl.cli.worker_views import (
    SmoothRate,
    audit_line,
    progress_line,
    progress_panel,
    validator_introduction,
    volunteer_introduction,
)
from p2prl.config.network_options import UploadCaps, peer_network
from p2prl.config.requirements import check_room, requirements_of
from p2prl.config.worker_folder import WorkerFolder, claim_worker_folder, default_home, write_status
from p2prl.net.process.handle import DEFAULT_LISTEN, NetworkHandle
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl.protocol.kinds import Role

if TYPE_CHECKING:
    from p2prl.client.service import Progress
    from p2prl.protocol.manifests import RunManifest
    from p2prl.validator.service import Audit

_STATUS_PERIOD_S = 1.0
_FINISHED = 9
_INTERRUPTED = 130


def join_run(
    link_text: str,
    *,
    home: Path | None,
    device: str,
    threads: int,
    listen: list[str] | None,
    slots: int,
    upload_mbit: float,
    monthly_gb: float,
    disk_gb: float,
    base: str,
    as_json: bool,
    adversary: str,
) -> None:
    """Volunteer until interrupted or until the run ends."""
    link = parse_link(link_text)
    caps = UploadCaps(upload_mbit=upload_mbit, monthly_gb=monthly_gb)

    from p2prl.client.agent import AgentConfig
    from p2prl.client.service import VolunteerConfig
    from p2prl.config.roles import build_volunteer
    from p2prl.models.device import choose_device, use_threads

    chosen = choose_device(device)
    use_threads(threads)
    model = _base_directory(base, quiet=as_json)
    seat = claim_worker_folder(home or default_home())
    crashes.keep_in(seat.directory)
    view = View(quiet=as_json)
    report = _Report(seat, link, "volunteer")
    speed = SmoothRate()

    def on_progress(progress: Progress) -> None:
        report.write(_progress_document(progress))
        rate = speed.update(progress.tokens_per_s, time.monotonic())
        view.update(
            lambda: progress_panel(link.name, seat.identity, progress, rate), lambda: progress_line(progress, rate)
        )

    def introduce(manifest: RunManifest) -> None:
        needs = requirements_of(manifest, Role.VOLUNTEER)
        _say_all(volunteer_introduction(manifest, needs, seat.identity, seat.directory.name, str(chosen)))
        check_room(needs, seat.run_directory(link.run))

    agent = AgentConfig(slots_per_batch=slots)
    volunteer = build_volunteer(
        link,
        seat,
        VolunteerConfig(agent=agent),
        device=chosen,
        base=model,
        on_manifest=introduce,
        on_progress=on_progress,
        on_notice=say,
    )
    if adversary:
        from p2prl.testing.adversaries import disguise

        disguise(volunteer, adversary)
    interrupts = Interrupts(
        volunteer.finish, volunteer.park, finishing="Finishing the slots under way; Ctrl-C again stops now (kept)."
    )
    with view.shown(), interrupts.handled():
        addresses = tuple(listen or DEFAULT_LISTEN)
        network = peer_network(link, seat, Role.VOLUNTEER, addresses, caps, disk_gb=disk_gb, has_base=model is not None)
        finished = volunteer.run(NetworkHandle(network))
    _leave(report, interrupts, finished=finished, as_json=as_json)


def validate_run(
    link_text: str,
    *,
    home: Path | None,
    device: str,
    threads: int,
    listen: list[str] | None,
    rate: float,
    upload_mbit: float,
    monthly_gb: float,
    base: str,
    as_json: bool,
) -> None:
    """Validate until interrupted or until the run ends."""
    link = parse_link(link_text)
    caps = UploadCaps(upload_mbit=upload_mbit, monthly_gb=monthly_gb)

    from p2prl.config.roles import build_validator
    from p2prl.models.device import choose_device, use_threads
    from p2prl.validator.service import ValidatorConfig

    chosen = choose_device(device)
    use_threads(threads)
    model = _base_directory(base, quiet=as_json)
    seat = claim_worker_folder(home or default_home(), kind="validator")
    crashes.keep_in(seat.directory)
    view = View(quiet=as_json)
    report = _Report(seat, link, "validator")

    def on_audit(audit: Audit) -> None:
        report.write(_audit_document(audit))
        view.update(lambda: audit_line(audit), lambda: audit_line(audit))

    def introduce(manifest: RunManifest) -> None:
        needs = requirements_of(manifest, Role.VALIDATOR)
        _say_all(validator_introduction(manifest, needs, seat.identity, seat.directory.name, str(chosen), rate))
        check_room(needs, seat.run_directory(link.run))

    validator = build_validator(
        link,
        seat,
        ValidatorConfig(rate=rate),
        device=chosen,
        base=model,
        on_manifest=introduce,
        on_audit=on_audit,
        on_notice=say,
    )
    interrupts = Interrupts(validator.stop, validator.stop, finishing="Stopping after this batch.")
    with view.shown(), interrupts.handled():
        addresses = tuple(listen or DEFAULT_LISTEN)
        network = peer_network(link, seat, Role.VALIDATOR, addresses, caps, has_base=model is not None)
        finished = validator.run(NetworkHandle(network))
    _leave(report, interrupts, finished=finished, as_json=as_json)


def _base_directory(base: str, *, quiet: bool) -> Path | None:
    """Where the model that was named lies, fetched first when it is a hub id; what is none is said before joining."""
    if not base:
        return None

    from p2prl.models.pretrained import model_directory

    with progress("the base", quiet=quiet) as tell:
        tell(f"finding {base}", 0.0)
        return model_directory(base)


def _leave(report: _Report, interrupts: Interrupts, *, finished: bool, as_json: bool) -> None:
    """Last words and exit code of a worker."""
    report.end("finished" if finished else "stopped")
    if as_json:
        emit(report.document)
    if finished:
        say("The learner has ended the run. Thank you.")
        sys.exit(_FINISHED)
    if interrupts.count:
        say("Stopped. What was finished is kept and goes out at the next start.")
        sys.exit(_INTERRUPTED)


class _Report:
    """The status file of a worker, rewritten now and then."""

    def __init__(self, seat: WorkerFolder, link: JoinLink, role: str) -> None:
        self._path = seat.run_directory(link.run) / "status.json"
        self._common = {"role": role, "run": link.name, "peer": seat.identity.peer_id}
        self._next_at = 0.0
        self.document: dict[str, Any] = dict(self._common)

    def write(self, document: dict[str, Any]) -> None:
        self.document = {**self._common, **document}
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _STATUS_PERIOD_S
            write_status(self._path, {**self.document, "time": time.time()})

    def end(self, state: str) -> None:
        self.document = {**self.document, "state": state}
        write_status(self._path, {**self.document, "time": time.time()})


def _say_all(lines: list[str]) -> None:
    for line in lines:
        say(line)


def _progress_document(progress: Progress) -> dict[str, Any]:
    received = progress.weight_bytes_from_learner + progress.weight_bytes_from_peers
    return {
        "state": progress.state,
        "version": progress.version,
        "announced_version": progress.announced_version,
        "peers": dict(progress.peers),
        "groups": dict(progress.groups),
        "reasons": dict(progress.reasons),
        "verified_tokens": progress.verified_tokens,
        "tokens_per_s": round(progress.tokens_per_s, 1),
        "reward_recent": None if progress.reward_recent is None else round(progress.reward_recent, 4),
        "weight_bytes_received": received,
        "weight_bytes_from_learner": progress.weight_bytes_from_learner,
        "weight_bytes_from_peers": progress.weight_bytes_from_peers,
        "weight_bytes_sent": progress.weight_bytes_sent,
        "patch_bytes": progress.patch_bytes,
        "whole_bytes": progress.whole_bytes,
        "brought_bytes": progress.brought_bytes,
        "spared_bytes": progress.spared_bytes,
        "network_resident_bytes": progress.network_resident_bytes,
        "network_daemon_bytes": progress.network_daemon_bytes,
    }


def _audit_document(audit: Audit) -> dict[str, Any]:
    return {
        "state": "validating",
        "version": audit.version,
        "groups_seen": audit.seen,
        "groups_replayed": audit.replayed,
        "verdicts_passed": audit.passed,
        "verdicts_failed": audit.failed,
        "groups_waiting": audit.waiting,
    }
