"""Start the replayers of a learner: where each computes, and with how many threads."""

from __future__ import annotations

from collections.abc import Callable

import torch

from p2prl.config.new_run import RunFolder
from p2prl.plain_text import counted
from p2prl.replayers import messages
from p2prl.replayers.replayer_processes import ReplayerProcesses


def start_replayers(
    folder: RunFolder, device: torch.device, threads: int, on_notice: Callable[[str], None]
) -> ReplayerProcesses:
    """The scorer of a run whose learner trains on `device` with this many CPU threads.

    `ProcessLostError` when a replayer ends before it is ready, and what it raised where it could say so.
    """
    manifest, count = folder.manifest, folder.settings.learner.replayers
    devices = replayer_devices(device, count, cards=torch.cuda.device_count())
    each = threads_of_replayer(threads, count)
    where = ", ".join(dict.fromkeys(devices))
    on_notice(f"starting {counted(count, 'replayer')} on {where} with {counted(each, 'CPU thread')} each")
    folder.paths.blobs.mkdir(parents=True, exist_ok=True)
    return ReplayerProcesses(
        messages.Model(
            first=str(folder.directory / "model"),
            lora=folder.manifest.lora,
            dtype=manifest.engine_dtype,
            published=manifest.dtype,
            weight_bytes=manifest.weight_bytes,
        ),
        devices=devices,
        threads=each,
        folder=folder.paths.blobs,
        on_notice=on_notice,
    )


def replayer_devices(device: torch.device, count: int, *, cards: int) -> list[str]:
    """Where `count` replayers compute: on the cards after the learner's, in turns, and on the learner's own where it
    is the only one; elsewhere on its device."""
    if device.type != "cuda":
        return [str(device)] * count
    own = device.index or 0
    others = [(own + step) % cards for step in range(1, cards)] or [own]
    return [f"cuda:{others[number % len(others)]}" for number in range(count)]


def threads_of_replayer(threads: int, count: int) -> int:
    """CPU threads of each replayer: the learner and its replayers share them evenly."""
    return max(1, threads // (count + 1))
