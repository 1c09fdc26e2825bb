"""Common parts of the worker commands: startup phases, status file, mirror of the ledger, exit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from p2prl.cli.device_errors import device_failures_explained, out_of_memory_explained
from p2prl.cli.interrupts import Interrupts
from p2prl.cli.views.console import LiveView, emit, say
from p2prl.clock import SystemClock
from p2prl.config.machine_limits import DiskPlan, MachineLimits, available_memory, check_memory, least_disk, plan_disk
from p2prl.config.refused_runs import forgetting_refused
from p2prl.config.requirements import requirements_of
from p2prl.config.worker_folder import WorkerFolder, write_status
from p2prl.errors import ConfigError, MachineError
from p2prl.exit_codes import INTERRUPTED, RUN_FINISHED
from p2prl.models.engines.start_stages import stages_told
from p2prl.net.process.bridge import NetworkPort
from p2prl.plain_text import counted
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunManifest
from p2prl.quantity_text import size_text
from p2prl.scoreboard.ledger.mirror import MirroringPort
from p2prl.tasks.wasm.runtime import library

if TYPE_CHECKING:
    from p2prl.config.requirements import Requirements
    from p2prl.net.process.run_preparation import Prepare


_STATUS_PERIOD_S = 1.0

_LOADING = "loading the engine"

T = TypeVar("T")


class StatusFile:
    """The status file of a worker, rewritten once a second."""

    def __init__(self, worker: WorkerFolder, link: JoinLink, role: str) -> None:
        self._path = worker.run_directory(link.run) / "status.json"
        self._common: dict[str, object] = {"role": role, "run": link.name, "peer": worker.identity.peer_id}
        self._next_at = 0.0
        self.document: dict[str, object] = dict(self._common)

    def keep(self, **facts: Any) -> None:
        """Have every further state hold these facts."""
        self._common |= facts

    def write(self, document: Mapping[str, object]) -> None:
        """Write the newest state, at most once a second."""
        self.document = {**self._common, **document}
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _STATUS_PERIOD_S
            write_status(self._path, {**self.document, "time": time.time()})

    def end(self, state: str) -> None:
        """Write the final state."""
        self.document = {**self.document, "state": state}
        write_status(self._path, {**self.document, "time": time.time()})


def shown_prepare(prepare: Prepare[T], view: LiveView) -> Prepare[T]:
    """Wrap `prepare` to show a startup phase, and the stages of an engine that takes its time."""

    def shown(manifest: RunManifest, files: Mapping[str, Path]) -> T:
        view.phase(_LOADING)
        with stages_told(partial(view.phase, _LOADING)):
            return prepare(manifest, files)

    return shown


def introduce_run(
    manifest: RunManifest,
    role: Role,
    directory: Path,
    lines: Callable[[Requirements, int], list[str]],
    limits: MachineLimits,
    *,
    on_cpu: bool = True,
    runs_code: bool = False,
    has_base: bool = False,
    mirrors: bool = False,
) -> DiskPlan:
    """Show the run and what it takes of this machine, before any of it is downloaded; raise when it takes too much.

    `lines` builds the introduction from the requirements and the most disk in bytes; `on_cpu` as in `check_memory`,
    `runs_code` as in `blobs_for`, `has_base` and `mirrors` as in `plan_disk`.
    """
    needs = requirements_of(manifest, role, runs_code=runs_code)
    plan, refusal = None, None
    try:
        if manifest.modules and role is not Role.SEEDER:
            library()
        check_memory(needs, limits, on_cpu=on_cpu, available_bytes=available_memory())
        plan = plan_disk(needs, role, limits, directory, has_base=has_base, mirrors=mirrors)
    except (ConfigError, MachineError) as error:
        refusal = error
    for line in lines(needs, plan.total_bytes if plan else least_disk(needs, role, has_base=has_base)):
        say(line)  # also of a run that is refused: its figures are the reason
    if plan is None:
        assert refusal is not None
        raise refusal
    return plan


@contextmanager
def session(directory: Path, limits: MachineLimits, interrupts: Interrupts) -> Iterator[None]:
    """A worker's session on the run in `directory`: Ctrl-C, a machine that fails, a run that was refused."""
    with (
        forgetting_refused(directory),
        out_of_memory_explained(limits),
        device_failures_explained(),
        interrupts.handled(),
    ):
        yield


def pending_text(document: Mapping[str, Any]) -> str:
    """Explanation of the groups without a verdict when a run ends; empty when there are none."""
    groups = document.get("groups", {})
    pending = groups.get("generated", 0) + groups.get("delivered", 0)
    if not pending:
        return ""
    stays = "It stays on disk, and earns" if pending == 1 else "They stay on disk, and earn"
    too_old = "it is" if pending == 1 else "they are"
    return (
        f"{counted(pending, 'group')} had no verdict when the run ended. {stays} credit only if the learner resumes "
        f"the run while {too_old} not too old."
    )


def given_text(document: Mapping[str, Any]) -> str:
    """A sentence on what the owner's machine has given; empty where that is nothing yet."""
    groups, sent = document.get("groups", {}).get("verified", 0), document.get("weight_bytes_sent", 0)
    parts = []
    if groups:
        tokens = counted(document.get("verified_tokens", 0), "token")
        parts.append(f"{counted(groups, 'verified group')} of {tokens} in this run so far")
    if sent:
        parts.append(f"{size_text(sent)} of weights uploaded since the start")
    return f"You gave {', and '.join(parts)}." if parts else ""


def end_session(status: StatusFile, interrupts: Interrupts, *, finished: bool, as_json: bool, kept: str) -> None:
    """Write the final status, print a closing line and exit. `kept` is that line after Ctrl-C."""
    status.end("finished" if finished else "stopped")
    if finished:
        say("The learner has ended the run. Thank you.")
        if pending := pending_text(status.document):
            say(pending)
    elif interrupts.count or interrupts.asked:
        say(kept)
    if given := given_text(status.document):
        say(given)
    if as_json:  # last, so that a log of both streams ends with it
        emit(status.document)
    if finished:
        sys.exit(RUN_FINISHED)
    if interrupts.count:
        sys.exit(INTERRUPTED)


FILE_SHARE = 0.8
"""Part of the mirror's disk that entries may take: the rest is SQLite's."""


class LedgerMirror:
    """Wraps a worker's network once it is made, and begins once the owner has accepted the run."""

    def __init__(self, worker: WorkerFolder, link: JoinLink, *, countersigns: bool = False) -> None:
        self._worker = worker
        self._link = link
        self._countersigns = countersigns
        self._port: MirroringPort | None = None

    def around(self, port: NetworkPort) -> NetworkPort:
        """The port for the worker."""
        self._port = MirroringPort(
            port,
            self._worker.run_directory(self._link.run) / "ledger.db",
            run=self._link.run,
            clock=SystemClock(),
            signer=self._worker.identity if self._countersigns else None,
        )
        return self._port

    def begin(self, plan: DiskPlan) -> None:
        """The owner has accepted the run, with this much disk."""
        if self._port is not None:
            self._port.begin(int(FILE_SHARE * plan.mirror_bytes))
