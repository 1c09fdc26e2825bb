"""`p2prl join` on several devices: a worker process for each, ended together, and one screen. Never imports torch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import typer

from p2prl.cli.interrupts import Interrupts
from p2prl.cli.views.console import LiveView, emit, say
from p2prl.cli.views.devices_view import DeviceRow, DevicesScreen, devices_line
from p2prl.config.worker_folder import default_home, read_status
from p2prl.confinement.linux import die_with_parent
from p2prl.errors import ConfigError, MachineError
from p2prl.exit_codes import INTERRUPTED, RUN_FINISHED, UNEXPECTED
from p2prl.models.hardware.card_names import card_named

_DEVICE = re.compile(r"cpu|mps|cuda:\d+")

_PLAIN = re.compile(r"auto|cpu|mps|cuda(:\d+)?|")
"""What needs no look at the cards."""

_LIST_CARDS = "import json; from p2prl.models.hardware.device_choice import card_list; print(json.dumps(card_list()))"
"""Runs in a process of its own: the one that starts the workers needs no torch, which takes 200 MB and seconds."""

_SHARED = ("upload_mbit", "monthly_gb", "disk_gb", "ram_gb")
"""Options that bound the machine: each worker gets its part."""

_OWN = ("device", "events", "as_json")

_PERIOD_S = 1.0
_FIRST_WORD_S = 60.0
"""Longest time until a worker has said something, which it does in a second; then it has its worker folder."""

_END_S = (0.5, 5.0)
"""Time to end after one more Ctrl-C, and after the next, when this process ends first."""

_REPEATED_S = 60.0
"""A message that another worker has printed so long ago is printed again."""

_ENDS = (0, RUN_FINISHED, INTERRUPTED)
"""Exit codes that nobody has to be told of."""

_BESIDE_NICENESS = 10
"""Of a worker beside other work: as `nice` gives it to a program."""


def one_device(context: typer.Context, device: str, *, home: Path | None, events: bool, as_json: bool) -> str:
    """The one device that `--device` names. When it names several, their workers run, and then this command ends."""
    devices = devices_of(device)
    if len(devices) == 1:
        return devices[0]
    arguments = given_options(context, len(devices))
    raise typer.Exit(join_devices(devices, arguments, home=home, events=events, as_json=as_json))


def devices_of(text: str) -> tuple[str, ...]:
    """The devices that `--device` names. `ConfigError` for a list of anything else, `MachineError` without a card."""
    if text == "all":
        if not (cards := _cards()):
            raise MachineError("there is no CUDA card here", remedy="Omit --device to use the best available device.")
        return tuple(cards)
    names = tuple(named_device(part.strip()) for part in text.split(","))
    if len(names) == 1:
        return names
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise ConfigError(
                f"{name[:40]!r} is not a device of a list", remedy="For example --device cuda:0,cuda:1, or all."
            )
    if twice := next((name for name, count in Counter(names).items() if count > 1 and name != "cpu"), ""):
        raise ConfigError(f"--device names {twice} twice", remedy="One worker for each card is enough.")
    return names


def named_device(text: str) -> str:
    """A device as torch names it, from that or from a part of a card's name; without a card, the text as it is.
    `ConfigError` with a list of the cards where the name means none of them, or several."""
    if _PLAIN.fullmatch(text):
        return text
    say(f"looking for a card called {text[:40]}")
    cards = _cards()
    return card_named(text, cards) if cards else text


def _cards() -> dict[str, str]:
    """Names of the CUDA cards, by device."""
    done = subprocess.run(
        [sys.executable, "-c", _LIST_CARDS], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        names = json.loads((done.stdout.splitlines() or ["[]"])[-1])
    except ValueError:
        names = []
    return {f"cuda:{number}": str(name) for number, name in enumerate(names)}


def given_options(context: typer.Context, workers: int, without: Sequence[str] = _OWN) -> list[str]:
    """The options of this command line for one of several workers, without some: those are the device and the kind of
    output where nothing else is said."""
    arguments: list[str] = []
    options: list[str] = []
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params[str(parameter.name)]
        if name in without or getattr(context.get_parameter_source(name), "name", "") != "COMMANDLINE":
            continue
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif value is True:
            options.append(parameter.opts[0])
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                part = each / workers if name in _SHARED else each
                options += [parameter.opts[0], str(part)]
    return arguments + options


def join_devices(
    devices: Sequence[str], arguments: Sequence[str], *, home: Path | None, events: bool, as_json: bool
) -> int:
    """Run a worker on each device until all have ended. Returns the exit code."""
    program = [sys.executable, "-m", "p2prl", "join", *arguments, "--events", "--json"]
    group = DeviceGroup(program, devices, home or default_home(), on_event=_forward if events else lambda _: None)
    view = LiveView(quiet=as_json)
    interrupts = Interrupts(
        group.interrupt,
        group.interrupt,
        finishing="Every worker ends after its current groups; Ctrl-C again ends now. Finished work is kept.",
    )
    with view.shown(), interrupts.handled(), group.ended_at_last():
        for device in group.started():
            view.phase("starting the workers", device)
        while group.is_alive():
            rows = group.rows()
            view.update(partial(DevicesScreen, rows, now=time.time()), partial(devices_line, rows))
            group.wait(_PERIOD_S)
        view.update(partial(DevicesScreen, group.rows(), now=time.time()), partial(devices_line, group.rows()))
    if as_json:
        emit({"workers": [worker.document() for worker in group.workers]})
    return exit_code_of([worker.process.returncode for worker in group.workers])


def _forward(event: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(event, sort_keys=True) + "\n")
    sys.stdout.flush()


def exit_code_of(codes: Sequence[int]) -> int:
    """The first failure; without one, that of an interrupted worker, else that of one whose run has ended, else 0."""
    failures = [code for code in codes if code not in _ENDS]
    if failures:
        return max(UNEXPECTED, failures[0])  # a worker that a signal killed has a negative status
    return max(codes, default=0)


@dataclass(slots=True)
class DeviceWorker:
    """The worker process of one device."""

    name: str
    """The device; numbered when it is named more than once."""
    process: subprocess.Popen[str]
    spoke: threading.Event = field(default_factory=threading.Event)
    """Set when it has printed its first event, or has ended."""
    phase: str = "starting"
    result: dict[str, object] = field(default_factory=dict)
    """Its last JSON object."""

    def document(self) -> dict[str, object]:
        """What it printed at its end, with its device and exit code."""
        return {**self.result, "device": self.name, "exit_code": self.process.returncode}


class DeviceGroup:
    """Workers that are started one after another, so that each device keeps its worker folder, and ended together."""

    def __init__(
        self,
        program: Sequence[str],
        devices: Sequence[str],
        home: Path,
        *,
        on_event: Callable[[Mapping[str, object]], None],
        beside: str = "",
    ) -> None:
        """`program` is a worker's command without `--device`; `on_event` gets each event with its `device` added.

        `beside` names the one worker of a program that does other work too: it is named in all that it says, and
        leaves the processor to that work.
        """
        self._program = program
        self._devices = devices
        self._home = home
        self._on_event = on_event
        self._beside = beside
        self._lock = threading.Lock()
        self._said: dict[str, tuple[DeviceWorker, float]] = {}
        self._readers: list[threading.Thread] = []
        self._interrupts = 0
        self.workers: list[DeviceWorker] = []

    def started(self) -> Iterator[str]:
        """Start the workers; yields each device when its worker begins. Stops early when they are interrupted."""
        for number, device in enumerate(self._devices):
            if self._interrupts:
                return
            earlier = self._devices[:number].count(device)
            yield (name := device if self._devices.count(device) == 1 else f"{device} #{earlier + 1}")
            worker = DeviceWorker(name, self._start(device))
            self.workers.append(worker)
            for read in (self._read_events, self._read_messages):
                self._readers.append(threading.Thread(target=read, args=(worker,), daemon=True))
                self._readers[-1].start()
            worker.spoke.wait(_FIRST_WORD_S)

    def _start(self, device: str) -> subprocess.Popen[str]:
        # A process group of its own: Ctrl-C reaches this process alone, which passes each one on once. The workers end
        # with it even when it is killed, or its terminal is closed.
        return subprocess.Popen(
            [*self._program, "--device", device],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
            preexec_fn=self._begin,
        )

    def _begin(self) -> None:
        if sys.platform == "linux":
            die_with_parent()
        if self._beside:
            os.nice(_BESIDE_NICENESS)

    def interrupt(self) -> None:
        """Pass one Ctrl-C on to every worker."""
        self._interrupts += 1
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGINT)

    def is_alive(self) -> bool:
        """Whether any worker runs."""
        return any(worker.process.poll() is None for worker in self.workers)

    def wait(self, seconds: float) -> None:
        """Wait for the end of a worker, at most so long."""
        running = next(worker for worker in self.workers if worker.process.returncode is None)
        with suppress(subprocess.TimeoutExpired):
            running.process.wait(seconds)

    def _await_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with suppress(subprocess.TimeoutExpired):
            for worker in self.workers:
                worker.process.wait(max(0.0, deadline - time.monotonic()))

    @contextmanager
    def ended_at_last(self) -> Iterator[None]:
        """Leave no worker behind: those that run when this block ends are interrupted, then killed."""
        try:
            yield
        finally:
            for seconds in _END_S:  # finish, then stop now
                self.interrupt()
                self._await_all(seconds)
            for worker in self.workers:
                worker.process.kill()
                worker.process.wait()
            for reader in self._readers:
                reader.join(_END_S[1])
            for worker in self.workers:
                for pipe in (worker.process.stdout, worker.process.stderr):
                    assert pipe is not None
                    pipe.close()

    def rows(self) -> list[DeviceRow]:
        """What each worker does now, from its status file."""
        statuses = {status.get("pid"): status for status in map(read_status, self._home.glob("*/*/status.json"))}
        return [
            DeviceRow(
                device=worker.name,
                phase=worker.phase,
                exit_code=worker.process.poll(),
                status={**statuses.get(worker.process.pid, {}), **worker.result},
            )
            for worker in self.workers
        ]

    # --- what the workers print, in threads ------------------------------------------------------------------------

    def _read_events(self, worker: DeviceWorker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            try:
                document = json.loads(line)
            except ValueError:
                continue  # cut off by its end
            if "event" not in document:
                worker.result = document
                continue
            if document["event"] == "phase":
                worker.phase = document["name"]
            self._on_event({**document, "device": worker.name})
            worker.spoke.set()
        worker.spoke.set()

    def _read_messages(self, worker: DeviceWorker) -> None:
        """Messages that several workers print are shown once; those of all but the first name their device."""
        assert worker.process.stderr is not None
        for line in worker.process.stderr:
            text, now = line.rstrip("\n"), time.monotonic()
            with self._lock:
                other, at = self._said.get(text, (worker, now))
                self._said[text] = (worker, now)
            if other is not worker and now - at < _REPEATED_S:
                continue
            say(text if worker is self.workers[0] and not self._beside else f"{self._beside or worker.name}: {text}")
        with suppress(subprocess.TimeoutExpired):
            if (code := worker.process.wait(_END_S[1])) not in _ENDS:
                others = "the rest goes" if self._beside else "the others go"
                say(f"The worker of {self._beside or worker.name} has ended with exit code {code}; {others} on.")
