"""The controls of a running worker: a thread that reads the sensors, obeys requests and gives the worker its orders.

A thin shell: `rules` decides. Orders are given when they change, and at most a second after their cause.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from p2prl.controls import messages
from p2prl.controls.awake_process import KeptAwake
from p2prl.controls.control_socket import ControlSocket
from p2prl.controls.energy import EnergyMeter, EnergyUse
from p2prl.controls.limits import Limits
from p2prl.controls.messages import Answer, LimitShown, Request
from p2prl.controls.owner_values import DAY_MINUTES, MOST_DURATION_S, Price
from p2prl.controls.rules import Order, Pause, Readings, Rules
from p2prl.disk_full import replace_file
from p2prl.errors import P2PRLError

_MOST_BYTES = 4_096


class _Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """Keys of later releases are passed over, and a default is not written: then an earlier release reads the rest."""

    until: float | None
    keeps_relaying: bool
    length_s: float | None = None


def load_pause(folder: Path) -> Pause | None:
    """The pause of a worker folder; None when there is none, or the file is damaged."""
    try:
        with (folder / "pause.json").open("rb") as file:
            found = msgspec.json.decode(file.read(_MOST_BYTES), type=_Document)
            written = os.fstat(file.fileno()).st_mtime
    except (OSError, msgspec.DecodeError):
        return None
    length_s = found.length_s
    if length_s is None:  # of an earlier release: the clock that gave the end also dated the file
        length_s = MOST_DURATION_S if found.until is None else max(0.0, found.until - written)
    return Pause(found.until, found.keeps_relaying, min(MOST_DURATION_S, length_s))


def save_pause(folder: Path, pause: Pause | None) -> None:
    """Keep a pause, or forget it. With a full disk, a restart forgets it too."""
    path = folder / "pause.json"
    with suppress(OSError):
        if pause is None:
            path.unlink(missing_ok=True)
            return
        length_s = None if pause.until is None else pause.length_s
        document = _Document(pause.until, pause.keeps_relaying, length_s)
        replace_file(path, msgspec.json.encode(document), private=True)


log = logging.getLogger("p2prl.controls")

PERIOD_S = 1.0
"""Sensors are read this often: limits act within two of them."""


class Worker(Protocol):
    """What the controls steer. Each method returns at once, and is called from the controls' thread."""

    def obey(self, order: Order) -> None:
        """Follow this order from now on."""
        ...

    def has_followed(self, order: Order) -> bool:
        """Whether it has done what this order says."""
        ...

    def limits_changed(self, limits: Limits) -> None:
        """Use these limits where they bound the network and the disk."""
        ...

    def is_idle(self) -> bool:
        """Whether it has had nothing to compute for a while."""
        ...

    def finish(self) -> None:
        """Complete what is in flight, and end."""
        ...

    def stop(self) -> None:
        """End now, and keep what is finished."""
        ...


class Sensors(Protocol):
    """Reads the machine."""

    def read(self, *, desktop: bool, names: tuple[str, ...] = ()) -> Readings:
        """What can be read now; never raises. `desktop` is whether keyboard, mouse and screen are asked for, `names`
        the programs that are."""
        ...

    def missing(self) -> Mapping[str, str]:
        """By limit, a sentence why it cannot be kept on this machine."""
        ...


class LiveControls:
    """Runs the rules of one worker. `start` begins the thread; until `attach` gives it a worker, orders wait.

    Worker, order, readings and end are kept side by side, because two threads share them under one lock.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        sensors: Sensors,
        *,
        listen: ControlSocket | None = None,
        now: Callable[[], float] = time.time,
        on_notice: Callable[[str], None] = lambda _: None,
        computes: bool = True,
        awake: KeptAwake | None = None,
    ) -> None:
        """`listen` is None where no socket could be made: limits still hold. `on_notice` gets sentences to show.
        `computes` is False for a worker without an engine, which no limit of a card concerns. `awake` holds the
        machine's sleep off."""
        self._folder = folder
        self._rules = Rules(limits, load_pause(folder))
        self._sensors = sensors
        self._socket = listen
        self._now = now
        self._on_notice = on_notice
        self._worker: Worker | None = None
        self._lock = threading.Lock()
        self._order = Order()
        self._readings = Readings()
        self._ending = ""
        self._computes = computes
        self._awake = awake or KeptAwake(missing="nothing here holds its sleep off")
        self._told_awake = ""
        self._meter, self._use = EnergyMeter(), EnergyUse()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def order(self) -> Order:
        """The order in force."""
        return self._order

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return self._rules.limits

    @property
    def energy(self) -> EnergyUse:
        """What the machine has measured since the start. From any thread."""
        return self._use

    @property
    def price(self) -> Price:
        """What a kWh costs the owner. From any thread."""
        return self._rules.price

    def start(self) -> None:
        """Begin the thread."""
        self._thread = threading.Thread(target=self._run, name="p2prl-controls", daemon=True)
        self._thread.start()

    def attach(self, worker: Worker) -> None:
        """Steer this worker; it gets the order in force at once."""
        with self._lock:
            self._worker = worker
            worker.obey(self._order)
            self._end_worker()

    def close(self) -> None:
        """End the thread and remove the socket."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(3 * PERIOD_S)
        self._awake.close()
        if self._socket is not None:
            self._socket.close()

    def tick(self) -> None:
        """Read the sensors and decide."""
        readings, worked = self._read(), not self._order.rests
        self._meter.note(time.monotonic(), readings.energy, readings.power_w, worked=worked)
        self._use = self._meter.use
        with self._lock:
            self._readings = readings
            self._decide()
        self._hold_awake()

    def answer(self, request: Request) -> Answer:
        """Obey a request and say what the worker does now."""
        with self._lock:
            try:
                self._take(request)
            except P2PRLError as error:
                return Answer(error=str(error), remedy=error.remedy)
            self._decide()
            return self._answer()

    def _run(self) -> None:
        """A worker whose limits nobody watches ends: its machine is its owner's first."""
        try:
            self._serve()
        except Exception:
            log.exception("the owner's controls failed")
            self._on_notice("The owner's controls failed, so this worker ends; finished groups are kept.")
            with self._lock:
                self._ending = "stop"
                self._end_worker()

    def _serve(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            if time.monotonic() >= due:
                self.tick()
                due = time.monotonic() + PERIOD_S
            wait_s = max(0.01, due - time.monotonic())
            if self._socket is None:
                self._ended.wait(wait_s)
            else:
                self._socket.serve(wait_s, self.answer)

    def _take(self, request: Request) -> None:
        match request:
            case messages.PauseRequest(for_s=for_s, keep_relaying=keep):
                if keep is None:
                    keep = self._rules.limits.value("keep-relaying") == "yes"
                self._set_pause(Pause(None, keep) if for_s is None else Pause(self._now() + for_s, keep, for_s))
            case messages.ResumeRequest():
                self._set_pause(None)
            case messages.FinishRequest():
                self._ending = self._ending or "finish"
                self._set_pause(None, apply=False)
                self._end_worker()
            case messages.StopRequest():
                self._ending = "stop"
                self._set_pause(None, apply=False)
                self._end_worker()
            case messages.LimitsRequest(changes=changes):
                self._rules.set_limits(self._rules.limits.changed(changes))
                self._readings = self._read()
                if self._worker is not None:
                    self._worker.limits_changed(self._rules.limits)
            case messages.StatusRequest():
                pass

    def _read(self) -> Readings:
        return self._sensors.read(desktop=self._rules.needs_desktop, names=self._rules.named_programs)

    def _hold_awake(self) -> None:
        """Keep the machine awake, or let it sleep, as the order in force says; say once why it cannot be."""
        idle = self._worker is not None and self._worker.is_idle()
        self._awake.follow(wanted=self._rules.keeps_awake(self._order, self._readings, idle=idle))
        why = self._awake.missing if self._rules.wants_awake else ""
        if why and why != self._told_awake:
            self._on_notice(f"This machine is not kept awake: {why}.")
        self._told_awake = why or self._told_awake

    def _set_pause(self, pause: Pause | None, *, apply: bool = True) -> None:
        """`apply` is False for a worker that ends: it would load its engine again, only to free it."""
        if apply:
            self._rules.set_pause(pause)
        save_pause(self._folder, pause)

    def _end_worker(self) -> None:
        if self._worker is not None and self._ending:
            (self._worker.stop if self._ending == "stop" else self._worker.finish)()

    def _decide(self) -> None:
        had_pause = self._rules.pause
        order = self._rules.decide(self._now(), _minute_of_week(self._now()), self._readings)
        if self._rules.pause != had_pause:
            save_pause(self._folder, self._rules.pause)
        before, self._order = self._order, order
        if self._worker is not None and order != before:
            self._worker.obey(order)
        if order.rests != before.rests:
            hint = "" if self._rules.pause is None else " p2prl resume ends the pause."
            self._on_notice(f"Resting: {order.reason}.{hint}" if order.rests else "Working again.")

    def _answer(self) -> Answer:
        order, pause = self._order, self._rules.pause
        if self._ending:
            state = "ending"
        elif order.rests:
            state = "paused" if pause is not None else "resting"
        elif self._worker is None:
            state = "starting"
        else:
            state = "slowed" if order.duty < 1.0 else "working"
        missing = self._sensors.missing()
        return Answer(
            state=state,
            reason=order.reason,
            until=None if pause is None else pause.until,
            duty=order.duty,
            relays=order.keeps_network,
            followed=self._worker is None or self._worker.has_followed(order),
            engine_bytes=self._readings.gpu_memory_bytes,
            limits={name: LimitShown(**shown) for name, shown in self._rules.limits.document().items()},
            unread=[
                f"{name} {_UNREAD.get(name, 'cannot be kept here')}: {why}"
                for name in self._rules.unread(self._readings)
                if (why := missing.get(name, "this machine has no sensor for it"))
                and (self._computes or not name.startswith(("gpu.", "energy.")))
            ]
            + [f"awake cannot be kept here: {self._awake.missing}"]
            * bool(self._rules.wants_awake and self._awake.missing),
        )


_UNREAD = {"energy.price": "has nothing to be beside"}
"""What is said of a limit without its sensor, where that is not that it cannot be kept."""


def _minute_of_week(now: float) -> int:
    local = time.localtime(now)
    return local.tm_wday * DAY_MINUTES + local.tm_hour * 60 + local.tm_min
