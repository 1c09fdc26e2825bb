"""Put a worker under its owner's controls: limits from files and options, the socket, the sensors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from p2prl.cli.interrupts import Interrupts
from p2prl.cli.views.console import say
from p2prl.config.machine_limits import MachineLimits
from p2prl.config.network_options import UploadCaps
from p2prl.config.owner_limits import load_limits
from p2prl.config.worker_folder import default_home
from p2prl.confinement.children import Launch, Program
from p2prl.controls.awake_process import KeptAwake, awake_program
from p2prl.controls.control_socket import ControlSocket
from p2prl.controls.desktop_process import DesktopWatch, desktop_program
from p2prl.controls.energy import EnergyUse
from p2prl.controls.limits import Figures, Limits, figures
from p2prl.controls.live_controls import LiveControls
from p2prl.controls.nvidia_sensors import find_card
from p2prl.controls.owner_values import Price
from p2prl.controls.program_process import ProgramWatch, programs_program
from p2prl.controls.rules import Order
from p2prl.controls.sensors import MachineSensors
from p2prl.errors import MachineError
from p2prl.net.process.order_follower import OrderFollower

_LEAST = 1e-6
"""Least figure of an option that is not 0: what texts of limits can hold."""


def option_texts(**options: float) -> dict[str, str]:
    """Texts of the limits that options of the command line set; those that are 0 set none."""
    names = {
        "share": ("share", ""),
        "vram_gb": ("gpu.memory", "GB"),
        "ram_gb": ("ram", "GB"),
        "upload_mbit": ("net.up", "Mbit"),
        "monthly_gb": ("net.month", "GB"),
        "disk_gb": ("disk", "GB"),
    }
    found = {}
    for option, value in options.items():
        name, unit = names[option]
        if value:
            found[name] = f"{max(value, _LEAST):.6f}".rstrip("0").rstrip(".") + unit
    return found


def open_controls(folder: Path) -> ControlSocket | None:
    """The worker's control socket, before it is confined; None, with a message, where there can be none."""
    try:
        return ControlSocket(folder)
    except MachineError as error:
        say(f"p2prl pause and its like will not reach this worker: {error}")
        return None


class RoleControls:
    """A role as the controls see it."""

    def __init__(self, owner: OrderFollower, interrupts: Interrupts, limits: Limits) -> None:
        self._owner = owner
        self._figures: Figures = figures(limits)
        self._interrupts = interrupts

    def obey(self, order: Order) -> None:
        """See `Worker`."""
        self._owner.give(order)

    def has_followed(self, order: Order) -> bool:
        """See `Worker`."""
        return self._owner.has_followed(order)

    def limits_changed(self, limits: Limits) -> None:
        """Bound the upload at once; what the run may store is settled at its start."""
        before, self._figures = self._figures, figures(limits)
        wanted = self._figures
        if (before.up_mbit, before.month_gb) != (wanted.up_mbit, wanted.month_gb):
            caps = UploadCaps(upload_mbit=wanted.up_mbit, monthly_gb=wanted.month_gb)
            self._owner.limit_upload(bytes_s=caps.bytes_s, monthly_bytes=caps.monthly_bytes)
        if before.disk_gb != wanted.disk_gb:
            say("The limit of disk holds from the next start of this worker.")

    def is_idle(self) -> bool:
        """See `Worker`."""
        return self._owner.is_idle

    def finish(self) -> None:
        """See `Worker`."""
        self._interrupts.ask(stop=False)

    def stop(self) -> None:
        """See `Worker`."""
        self._interrupts.ask(stop=True)


DESKTOP, PROGRAMS, AWAKE = "desktop", "programs", "awake"
"""Processes of the controls, which a confined worker has started for it."""


def control_programs() -> dict[str, Program]:
    """The programs of those processes."""
    return {DESKTOP: desktop_program(), PROGRAMS: programs_program(os.getpid()), AWAKE: awake_program()}


class OwnerControls:
    """The controls of one worker, from before torch is imported until its end."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        listen: ControlSocket | None,
        *,
        launches: Mapping[str, Launch],
        computes: bool = True,
    ) -> None:
        """`launches` start the processes of `control_programs` where this process may start none; `computes` as in
        `LiveControls`."""
        self._desktop = DesktopWatch(launches.get(DESKTOP))
        self._programs = ProgramWatch(launches.get(PROGRAMS))
        self._sensors = MachineSensors(desktop=self._desktop, programs=self._programs)
        self._live = LiveControls(
            folder,
            limits,
            self._sensors,
            listen=listen,
            on_notice=say,
            computes=computes,
            awake=KeptAwake(launches.get(AWAKE)),
        )

    def energy(self) -> tuple[EnergyUse, Price]:
        """What the machine has measured since the start, and what a kWh costs its owner. From any thread."""
        return self._live.energy, self._live.price

    @contextmanager
    def running(self) -> Iterator[OwnerControls]:
        """Obey inside this block."""
        self._live.start()
        try:
            yield self
        finally:
            self._live.close()
            self._desktop.close()
            self._programs.close()

    def steer(self, owner: OrderFollower, interrupts: Interrupts, *, device: str = "cpu") -> None:
        """Steer the role that `owner` belongs to; its engine, if any, computes on `device`, a torch device's name."""
        card = find_card(device, _card_id(device))
        self._sensors.use(engine_bytes=_engine_memory(device), card=card, others_bytes=owner.memory_bytes)
        self._live.attach(RoleControls(owner, interrupts, self._live.limits))


def _card_id(device: str) -> str:
    """The id by which the driver knows a CUDA device; empty where torch does not tell."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return ""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    return f"GPU-{uuid}" if uuid else ""


def _engine_memory(device: str) -> Callable[[], int | None]:
    """Reader of what torch holds on a device; None on a CPU, where `ram` counts it."""
    if not device.startswith("cuda"):
        return lambda: None

    def held() -> int | None:
        torch = sys.modules.get("torch")
        return None if torch is None else int(torch.cuda.memory_reserved(device))

    return held


@dataclass(frozen=True, slots=True)
class PlannedLimits:
    """What a start plans with: the owner's limits, and the figures that bound it from its first byte."""

    owner: Limits
    machine: MachineLimits
    caps: UploadCaps
    vram_gb: float


def plan_limits(
    home: Path | None,
    *,
    ram_gb: float,
    upload_mbit: float,
    monthly_gb: float,
    disk_gb: float,
    vram_gb: float = 0.0,
    share: float = 0.0,
) -> PlannedLimits:
    """The owner's limits with these options of a start. `ConfigError` for a figure or a file that is wrong."""
    MachineLimits(disk_gb=disk_gb, ram_gb=ram_gb)  # refuses figures that no text of a limit could hold
    UploadCaps(upload_mbit=upload_mbit, monthly_gb=monthly_gb)
    options = option_texts(
        share=share, vram_gb=vram_gb, ram_gb=ram_gb, upload_mbit=upload_mbit, monthly_gb=monthly_gb, disk_gb=disk_gb
    )
    owner = load_limits(home or default_home(), options)
    wanted = figures(owner)
    return PlannedLimits(
        owner,
        MachineLimits(
            disk_gb=wanted.disk_gb,
            ram_gb=wanted.ram_gb,
            origins={name: owner.settings[name].origin for name in ("disk", "ram")},
        ),
        UploadCaps(upload_mbit=wanted.up_mbit, monthly_gb=wanted.month_gb),
        wanted.gpu_memory_gb,
    )
