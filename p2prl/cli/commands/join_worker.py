"""Run a volunteer from a join link until Ctrl-C or the end of the run."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from p2prl.cli.commands.worker_session import (
    LedgerMirror,
    StatusFile,
    end_session,
    introduce_run,
    session,
    shown_prepare,
)
from p2prl.cli.commands.worker_start import NETWORK, TOKENIZER, WorkerRequest, WorkerStart, engine_off_cards
from p2prl.cli.interrupts import Interrupts
from p2prl.cli.views.console import LiveView, say
from p2prl.cli.views.volunteer_view import EventLines, SmoothRate, progress_document, progress_line, startup_phase
from p2prl.cli.views.worker_introduction import volunteer_introduction
from p2prl.cli.views.worker_screen import WorkerScreen
from p2prl.config.machine_limits import DiskPlan, sampling_memory
from p2prl.config.refused_runs import forgetting_refused
from p2prl.config.worker_folder import read_status
from p2prl.controls.energy import EnergyAccount, EnergyUse
from p2prl.controls.owner_values import Price
from p2prl.net.process.early_port import EarlyPort
from p2prl.net.process.handle import NetworkHandle
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunManifest

if TYPE_CHECKING:
    from p2prl.client.progress import Progress
    from p2prl.models.engines.engine_names import ChosenEngine
    from p2prl.models.groups.group_work import SamplingTools
    from p2prl.models.sampler_port import Sampler
    from p2prl.net.process.bridge import NetworkPort
    from p2prl.net.process.run_preparation import Prepare

_MEET_S = 10.0
"""How long the run is looked for before the engine is imported meanwhile."""

_FINISHING = "Ending after the current groups; Ctrl-C again ends now. Finished work is kept."
_KEPT = "Stopped. Finished groups are kept and will be delivered at the next start."


def join_run(
    start: WorkerStart,
    *,
    slots: int,
    price: float | None,
    mirrors: bool,
    events: bool,
    as_json: bool,
    wrap_sampler: Callable[[Sampler], Sampler] | None = None,
    wrap_network: Callable[[NetworkPort], NetworkPort] | None = None,
) -> None:
    """Volunteer until interrupted or until the run ends. With a `price` an hour it may be put on standby."""
    request, link, worker = start.request, start.link, start.worker
    lines = EventLines(asked=events)
    view = LiveView(quiet=as_json, on_phase=lines.phase)
    limits = request.limits.machine
    controls = start.controls()
    directory = worker.run_directory(link.run)
    with view.shown(), controls.running(), forgetting_refused(directory), ExitStack() as unused:
        device, chosen_engine = _opened(request, view)
        screen = _Screen(view, lines, start, device, chosen_engine, mirrors=mirrors, energy=controls.energy)
        view.phase("finding the run")
        config = start.network(Role.VOLUNTEER, price=price)
        start.seal()
        network = EarlyPort(NetworkHandle(config, launch=start.launches.get(NETWORK)))
        unused.callback(network.close)
        screen.meet(network)
        view.phase("importing the engine")

        from p2prl.client.next_action import AgentConfig
        from p2prl.client.service import VolunteerConfig
        from p2prl.config.roles import build_volunteer, prepare_replay, prepare_sampling
        from p2prl.models.hardware.device_choice import choose_device, use_threads

        chosen = choose_device(device)
        use_threads(request.threads)
        sampling_bytes = sampling_memory(limits, on_cpu=chosen.type == "cpu")
        tokenizer = start.launches.get(TOKENIZER)
        prepare = partial(
            prepare_sampling,
            run=link.run,
            device=chosen,
            engine=chosen_engine,
            memory_bytes=int(request.limits.vram_gb * 1e9) or sampling_bytes,
            on_notice=screen.tell,
            launch_tokenizer=tokenizer,
        )

        volunteer = build_volunteer(
            link,
            worker,
            VolunteerConfig(agent=AgentConfig(slots_in_flight=slots), stands_by=price is not None),
            prepare=shown_prepare(screen.around(_wrapping(prepare, wrap_sampler)), view),
            base=start.base,
            on_manifest=screen.introduce,
            on_progress=screen.on_progress,
            on_notice=screen.tell,
            make_replay_tools=lambda run, files: prepare_replay(
                run.manifest, files, run=run.run, device=chosen, scores=False, launch_tokenizer=tokenizer
            ),
        )
        mirror = LedgerMirror(worker, link)
        screen.on_plan += [lambda plan: volunteer.limit_spool(plan.spool_bytes), mirror.begin]
        interrupts = Interrupts(volunteer.finish, volunteer.park, finishing=_FINISHING)
        with session(directory, limits, interrupts):
            controls.steer(volunteer.owner, interrupts, device=device)
            unused.pop_all()  # the volunteer closes its network
            finished = volunteer.run((wrap_network or _as_it_is)(mirror.around(network) if mirrors else network))
    end_session(screen.status, interrupts, finished=finished, as_json=as_json, kept=_KEPT)


def _opened(request: WorkerRequest, view: LiveView) -> tuple[str, ChosenEngine]:
    """The device, ready for a process that may open no sockets, and the engine for it.

    Off cards torch is imported later, under the filter of system calls; on a card, where nobody has tried that, here.
    """
    if (engine := engine_off_cards(request)) is not None:
        return "cpu", engine
    view.phase("importing torch")

    from p2prl.models.engines.registry import choose_engine
    from p2prl.models.hardware.device_choice import open_device

    importlib.import_module("p2prl.config.roles")  # with all that it imports
    device = open_device(request.device)
    return str(device), choose_engine(request.engine, device)


def _as_it_is(network: NetworkPort) -> NetworkPort:
    return network


def _wrapping(
    prepare: Prepare[SamplingTools], wrap_sampler: Callable[[Sampler], Sampler] | None
) -> Prepare[SamplingTools]:
    """`prepare`, with its sampler wrapped if asked."""
    if wrap_sampler is None:
        return prepare

    def wrapped(manifest: RunManifest, files: Mapping[str, Path]) -> SamplingTools:
        tools = prepare(manifest, files)
        return replace(tools, sampler=wrap_sampler(tools.sampler))

    return wrapped


class _Screen:
    """Shows a volunteer's progress in the live view, in its status file and as events.

    Thirteen attributes, because it shows the run too, and before the volunteer begins."""

    def __init__(
        self,
        view: LiveView,
        events: EventLines,
        start: WorkerStart,
        device: str,
        engine: ChosenEngine,
        *,
        mirrors: bool,
        energy: Callable[[], tuple[EnergyUse, Price]],
    ) -> None:
        self.status = StatusFile(start.worker, start.link, "volunteer")
        self._view = view
        self._events = events
        self._start = start
        self._read_energy = energy
        left = read_status(start.worker.run_directory(start.link.run) / "status.json")
        self._energy = EnergyAccount.going_on(left.get("energy"))
        self._device = device
        self._engine = engine
        self._mirrors = mirrors
        self.on_plan: list[Callable[[DiskPlan], None]] = []
        """Get the shares of the disk once the role begins with the run."""
        self._plan: DiskPlan | None = None
        self._speed = SmoothRate()
        self._told: list[str] | None = None  # while the engine is prepared

    def around(self, prepare: Prepare[SamplingTools]) -> Prepare[SamplingTools]:
        """Wrap `prepare` to keep in the status which engine samples, and why."""

        def known(manifest: RunManifest, files: Mapping[str, Path]) -> SamplingTools:
            told = self._told = []
            tools = prepare(manifest, files)
            self._told = None
            computes = tools.sampler.engine_class
            reason = self._engine.reason if computes.engine == self._engine.name else " ".join(told)
            self.status.keep(engine={**asdict(computes), "reason": reason})
            return tools

        return known

    def meet(self, network: EarlyPort) -> None:
        """Show the run, if it is found soon, before the engine is imported, which takes seconds."""
        until = time.monotonic() + _MEET_S
        if (raw := network.await_run(lambda: time.monotonic() > until)) is not None:
            self._plan = self._introduced(body_of(open_envelope(raw, now=None), RunManifest))

    def introduce(self, manifest: RunManifest) -> int:
        """Show the run, unless it was, before any of it is downloaded; returns the disk for the network process."""
        plan = self._plan or self._introduced(manifest)
        for settle in self.on_plan:
            settle(plan)
        return plan.network_bytes

    def _introduced(self, manifest: RunManifest) -> DiskPlan:
        worker, limits = self._start.worker, self._start.request.limits
        own = {name: each.text for name, each in limits.owner.settings.items() if each.origin != "default"}
        return introduce_run(
            manifest,
            Role.VOLUNTEER,
            worker.run_directory(self._start.link.run),
            lambda needs, disk: volunteer_introduction(
                manifest, needs, disk, worker.identity, worker.directory, self._device, self._engine, own
            ),
            limits.machine,
            on_cpu=self._device == "cpu",
            has_base=self._start.base is not None,
            mirrors=self._mirrors,
        )

    def tell(self, text: str) -> None:
        """A message for the owner."""
        say(text)
        if self._told is not None:
            self._told.append(text)
        self._events.notice(text)

    def on_progress(self, progress: Progress) -> None:
        """Show the newest state: the startup phases first, then the screen."""
        document = progress_document(progress)
        use, price = self._read_energy()
        if (energy := self._energy.document(use, progress.verified_tokens, price)) is not None:
            document["energy"] = energy
        self.status.write(document)
        self._events.progress(document)
        rate = self._speed.update(progress.tokens_per_s, time.monotonic())
        if phase := startup_phase(progress):
            self._view.phase(*phase)
            return
        self._view.update(
            lambda: WorkerScreen({**self.status.document, "tokens_per_s": rate}, now=time.time()),
            lambda: progress_line(progress, rate),
        )
