"""Time the owner's controls: each limit with fake sensors, and a pause of a worker that samples on loopback.

python -m p2prl_lab.controls_times [--width 512] [--rest-s 20] [--json]

The first rows run the controls' own thread in this process. The last ones start a learner and a volunteer, and read the
volunteer's memory and processor time from the system: use a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import GPT2LMHeadModel

from p2prl.config.new_run import init_run
from p2prl.config.presets import preset_by_name
from p2prl.config.worker_folder import read_status
from p2prl.controls.control_socket import ask
from p2prl.controls.limits import Limits
from p2prl.controls.live_controls import LiveControls
from p2prl.controls.messages import PauseRequest, Request, ResumeRequest, StopRequest
from p2prl.controls.rules import Order, Readings
from p2prl.controls.sensors import own_memory
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, wait_until

CALM = Readings(
    gpu_memory_bytes=10**9,
    power_w=80.0,
    temperature_c=50.0,
    ram_bytes=10**9,
    idle_s=3_600.0,
    programs=(),
    game="",
    battery_percent=101.0,
)

CAUSES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("gpu.temp", "70C", {"temperature_c": 75.0}),
    ("gpu.power", "100W", {"power_w": 150.0}),
    ("gpu.memory", "2GB", {"gpu_memory_bytes": 3 * 10**9}),
    ("ram", "2GB", {"ram_bytes": 3 * 10**9}),
    ("idle", "10m", {"idle_s": 0.0}),
    ("yield", "programs", {"programs": ("blender",)}),
    ("yield", "games", {"game": "chess"}),
    ("battery", "never", {"battery_percent": 90.0}),
)

FREED = 0.9
"""Share of the engine's weights that must be free for a pause to count as done."""


class FakeMachine:
    """Sensors that a measurement sets, and a worker that notes when an order came."""

    def __init__(self) -> None:
        self.readings = CALM
        self.acted_at = 0.0
        self.ordered = threading.Event()

    def read(self, *, desktop: bool, names: tuple[str, ...] = ()) -> Readings:
        """See `Sensors`."""
        del desktop, names
        return self.readings

    def missing(self) -> Mapping[str, str]:
        """See `Sensors`."""
        return {}

    def obey(self, order: Order) -> None:
        """See `Worker`."""
        if order != Order():
            self.acted_at = time.monotonic()
            self.ordered.set()

    def has_followed(self, order: Order) -> bool:
        """See `Worker`."""
        del order
        return True

    def limits_changed(self, limits: Limits) -> None:
        """See `Worker`."""

    def is_idle(self) -> bool:
        """See `Worker`."""
        return False

    def finish(self) -> None:
        """See `Worker`."""

    def stop(self) -> None:
        """See `Worker`."""


def limit_times() -> Iterator[dict[str, Any]]:
    """Seconds from a cause to the order, for each limit, with the controls' own thread."""
    for name, value, cause in CAUSES:
        with tempfile.TemporaryDirectory() as folder:
            machine = FakeMachine()
            controls = LiveControls(Path(folder), Limits.layered({"command": {name: value}}), machine)
            controls.attach(machine)
            controls.start()
            machine.ordered.wait(1.3)  # a moment between two readings
            began = time.monotonic()
            machine.readings = replace(CALM, **cause)
            machine.ordered.wait(30.0)
            controls.close()
            yield {"measure": f"{name}={value}", "seconds": round(machine.acted_at - began, 3), "most": 2.0}


def make_run(folder: Path, width: int) -> int:
    """A run folder `run` with a model of this width; its bytes in float32."""
    small = tiny_model(seed=3)
    config = small.model.config
    config.update({"n_embd": width, "n_inner": 4 * width, "n_layer": 6, "n_head": 8})
    torch.manual_seed(3)
    model = GPT2LMHeadModel(config)
    model.save_pretrained(folder / "model")
    small.tokenizer.save_pretrained(folder / "model")
    plan = RunPlan(name="controls", goal="time its owner's controls", task="chain4", model=str(folder / "model"))
    settings = preset_by_name("chain4").settings_text()
    init_run(folder / "run", plan, settings=settings, on_progress=lambda *_: None)
    return sum(4 * parameter.numel() for parameter in model.parameters())


def pause_times(folder: Path, width: int, rest_s: float) -> Iterator[dict[str, Any]]:
    """A pause of a volunteer: seconds until its memory is free, its load meanwhile, seconds until it samples again."""
    engine_bytes = make_run(folder, width)
    swarm = SwarmProcesses(folder / "swarm")
    home = folder / "home"
    with swarm.running():
        swarm.start("learner", "learn", str(folder / "run"), "--updates", "0", *LISTEN)
        link = wait_until((folder / "run" / "link").exists, seconds=300, what="a link")
        link = (folder / "run" / "link").read_text().strip()
        worker = swarm.start("join", "join", link, "--home", str(home), "--slots", "2", *LISTEN)
        wait_until(lambda: _tokens_per_s(home) > 0, seconds=600, what="the first tokens")
        held = _memory(worker)

        asked, used_s = time.monotonic(), _seconds_used(worker, alone=True)
        _tell(home, PauseRequest())
        wait_until(lambda: held - _memory(worker) >= FREED * engine_bytes, seconds=60, what="free memory")
        freed_s, used_s = time.monotonic() - asked, _seconds_used(worker, alone=True) - used_s
        wait_until(lambda: _status(home).get("peers") == {}, seconds=60, what="an end of the network process")
        yield {
            "measure": "pause until 90 % is free",
            "seconds": round(freed_s, 3),
            "most": 2.0,
            "processor_s": round(used_s, 2),
        }
        yield {
            "measure": "memory freed, of the engine's weights",
            "share": round((held - _memory(worker)) / engine_bytes, 3),
            "least": FREED,
            "engine_mb": round(engine_bytes / 1e6),
        }

        before = _seconds_used(worker)
        threading.Event().wait(rest_s)
        load = (_seconds_used(worker) - before) / rest_s
        yield {"measure": "load of a core while paused", "share": round(load, 4), "most": 0.005}

        asked = time.monotonic()
        _tell(home, ResumeRequest())
        wait_until(lambda: _status(home).get("state") == "sampling", seconds=120, what="sampling")
        yield {"measure": "resume until it samples", "seconds": round(time.monotonic() - asked, 3), "most": 5.0}
        _tell(home, StopRequest())
        worker.wait(60)


def _tell(home: Path, request: Request) -> None:
    answer = ask(home / "seat-1", request)
    assert answer is not None
    assert not answer.error, answer.error


def _status(home: Path) -> dict[str, Any]:
    return next((read_status(path) for path in home.glob("seat-1/*/status.json")), {})


def _tokens_per_s(home: Path) -> float:
    return float(_status(home).get("tokens_per_s", 0.0))


def _memory(worker: RoleProcess) -> int:
    return own_memory(Path(f"/proc/{worker.process.pid}/status")) or 0


def _seconds_used(worker: RoleProcess, *, alone: bool = False) -> float:
    """Processor time of the worker, `alone` or with all that it started."""
    return sum(sum(process.cpu_times()[:2]) for process in worker.tree()[: 1 if alone else None])


def main() -> int:
    """Print a row for each measurement; exit 1 when one misses its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512, help="of the model: 512 gives 76 MB of weights")
    parser.add_argument("--rest-s", type=float, default=20.0, help="seconds over which a paused worker's load is read")
    parser.add_argument("--json", action="store_true", help="print one JSON row per measurement")
    arguments = parser.parse_args()
    missed = 0
    measures: tuple[Callable[[], Iterator[dict[str, Any]]], ...] = (
        limit_times,
        lambda: pause_times(Path(folder), arguments.width, arguments.rest_s),
    )
    with tempfile.TemporaryDirectory(prefix="p2prl-controls-") as folder:
        for measure in measures:
            for row in measure():
                value = row.get("seconds", row.get("share"))
                kept = row.get("least", float("-inf")) <= value <= row.get("most", float("inf"))
                missed += not kept
                busy = f"of processor time {row['processor_s']}" if "processor_s" in row else ""
                text = f"{row['measure']:<40} {value:>8}   {'' if kept else 'MISSED'} {busy}".rstrip()
                print(json.dumps({**row, "kept": kept}) if arguments.json else text, flush=True)
    print(f"{psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.1f}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
