"""The kernels of the draw, run by Triton's own NVIDIA driver on a card that does nothing, as JSON: no card is needed.

A program of its own: `compile HOME` as the process before a worker does, `draw HOME` as a confined worker, which is
confined for real. LD_LIBRARY_PATH leads to a `libcuda.so.1` whose functions all succeed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from p2prl.cli.commands.owner_controls import plan_limits
from p2prl.cli.commands.worker_start import WorkerRequest, WorkerStart, start_worker
from p2prl.models.seeded_draw import kept_kernels
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.limits import MAX_VOCABULARY

DEVICE = "cuda"


def kernel_folder(home: Path) -> Path:
    """Where the kernels of this home and device are kept."""
    return home / kept_kernels.FOLDER / kept_kernels._digest(home, DEVICE)


def idle_driver() -> None:
    """Have Triton believe in a card of compute capability 9.0."""
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime.driver import driver

    class Idle(CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.get_current_device = lambda: 0
            self.get_device_capability = lambda device=0: (9, 0)
            self.get_current_stream = lambda device: 0
            self.utils.get_device_properties = lambda device: {"max_shared_mem": 232_448}
            self.utils.load_binary = lambda *given: (1, 1, 32, 0, 1024)

    driver.set_active(Idle())


def compile_all(folder: Path) -> None:
    """`kernel_compilation.main`, but for the tokens: nothing draws them here."""
    import torch

    from p2prl.models.seeded_draw.kernel_compilation import forget_file_type, leave_note

    forget_file_type()
    idle_driver()
    from p2prl.models.seeded_draw import card_draw

    place = torch.device("cpu")
    for dtype in card_draw._DTYPES:
        card_draw._draws_known(place, dtype)
    card_draw._is_accurate(place)
    leave_note(folder)


def draw_everything() -> dict[str, Any]:
    """Whether each kernel was found compiled, for logits of any dtype, size, stride and place in memory."""
    import torch
    import triton

    found: list[bool] = []
    triton.knobs.compilation.listener = lambda **compiled: found.append(compiled["cache_hit"])
    began = time.monotonic()
    idle_driver()
    from p2prl.models.seeded_draw import card_draw

    fault = card_draw.fault_on(torch.device("cpu"))
    took_s = time.monotonic() - began
    if not fault.startswith("Triton cannot compile"):
        for dtype in (*card_draw._DTYPES, torch.float64):
            for vocabulary in (1, 16, 17, 5000, MAX_VOCABULARY - 3):
                held = torch.zeros(5, vocabulary + 3, dtype=dtype)
                last_of_many = held.as_strided((1, vocabulary), (1 << 31, 1))
                parts = (held[:, 1:], held[1:2, 3:], held[::2, : vocabulary // 2 + 1], held[:, ::2], last_of_many)
                for logits in (held, *parts):
                    rows = (torch.ones(6)[1:], torch.arange(6)[1:], torch.arange(5))
                    card_draw.draw_on_card(logits, *(part[: len(logits)] for part in rows))
    return {"found": found, "fault": fault, "took_s": took_s}


def refused(folder: Path) -> list[str]:
    """What a worker tried to write in the folder of kernels and could not."""
    attempts: dict[str, Callable[[], object]] = {
        "a new file": lambda: (folder / "new.so").write_bytes(b""),
        "a kernel": lambda: next(folder.glob("*/*.so")).write_bytes(b""),
        "no kernel": lambda: next(folder.glob("*/*.so")).unlink(),
        "the note": lambda: (folder / kept_kernels.NOTE).write_text("{}"),
        "another folder": lambda: (folder.parent / "other").mkdir(),
    }
    found = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except PermissionError:
            found.append(name)
    return found


def start(home: Path) -> WorkerStart:
    """A worker of `p2prl join --device cuda`, confined to its files."""
    peer = Identity(bytes(range(16))).peer_id
    request = WorkerRequest(
        link=str(JoinLink("unit", Digest(bytes(32)), (f"/ip4/127.0.0.1/tcp/1/p2p/{peer}",))),
        kind="seat",
        home=home,
        limits=plan_limits(home, ram_gb=0.0, upload_mbit=0.0, monthly_gb=0.0, disk_gb=0.0),
        listen=None,
        transport="hivemind",
        device=DEVICE,
    )
    return start_worker(request)


def main() -> None:
    """See the module."""
    home = Path(sys.argv[2])
    folder = kernel_folder(home)
    if sys.argv[1] == "compile":
        folder.mkdir(parents=True)
        os.environ["TRITON_CACHE_DIR"] = str(folder)
        compile_all(folder)
        return
    started = start(home)
    made = draw_everything()
    started.seal()
    again = draw_everything()
    sys.stdout.write(json.dumps({"files": made, "calls": again, "refused": refused(folder)}))


if __name__ == "__main__":
    main()
