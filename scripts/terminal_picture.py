"""Make the picture of a volunteer's terminal for the README, drawn by the view that `p2prl join` uses.

    python -m scripts.terminal_picture                 # writes docs/images/join.svg

The run, the key and the figures are examples, chosen to fit together; the text comes from the view. The picture loads
no font from elsewhere, so it looks the same offline, and its bytes are the same on every machine.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from p2prl.cli.views.volunteer_view import progress_document
from p2prl.cli.views.worker_introduction import volunteer_introduction
from p2prl.cli.views.worker_screen import WorkerScreen
from p2prl.client.progress import Progress
from p2prl.client.run_watch import RunView
from p2prl.config.presets import PRESETS
from p2prl.config.requirements import requirements_of
from p2prl.config.worker_folder import platform_home
from p2prl.models.engines.engine_names import AUTO
from p2prl.models.engines.registry import choose_engine
from p2prl.plain_text import wrapped
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import Sampling, TaskShare
from p2prl_lab.testing.sample_ledgers import identity, manifest

ROOT = Path(__file__).resolve().parent.parent

COLUMNS = 110
"""Wide enough for every sentence of the introduction."""

MAX_BYTES = 120_000
"""A README that loads fast."""

THEME = TerminalTheme(
    (22, 27, 34),
    (230, 237, 243),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
)
"""Light text on a dark ground, readable on a light page and on a dark one."""

FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

NOW = 1_795_000_000.0
"""The time of the picture, Unix seconds."""

COMMAND = "$ p2prl join 'p2prl://chain-of-sums@2xg5…'"


def without_downloads(svg: str) -> str:
    """The picture with fonts of the reader's machine in the place of downloaded ones."""
    local = re.sub(r" *@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    return local.replace("Fira Code, monospace", FONTS)


def example_progress() -> Progress:
    """One of fifteen volunteers at learner step 94 of a run with 16 groups an update, while a newer version arrives."""
    return Progress(
        state="sampling",
        version=46,
        announced_version=47,
        step=94,
        peers={"learner": 1, "validator": 1, "volunteer": 14},
        groups={"generated": 3, "delivered": 4, "verified": 104, "rejected": 0, "expired": 0},
        reasons={},
        verified_tokens=5_012,
        reward_recent=0.81,
        tokens_per_s=212.0,
        fetching=(47, 19, 32),
        weight_bytes_from_learner=208_000,
        weight_bytes_from_peers=1_176_000,
        weight_bytes_sent=1_941_000,
        network_resident_bytes=53_000_000,
        network_daemon_bytes=70_000_000,
        patch_bytes=1_266_000,
        whole_bytes=118_080,
        brought_bytes=5_550_000,
        reach="punched",
        run=RunView(
            step=95,
            curve=tuple((step, 0.56 + 0.26 * (1 - 0.955 ** (step - 40))) for step in range(40, 96)),
            machines=15,
            since=NOW - 3_000.0,
        ),
    )


def picture() -> str:
    """The SVG: the command, the introduction of the run, and the panel."""
    preset = PRESETS["chain4"]
    run = manifest(
        goal=preset.goal,
        base_model=f"made here: {preset.task}, seed 0",
        parameters=59_040,
        tasks=(TaskShare(preset.task, 1.0),),
        sampling=Sampling(1.0, preset.max_new_tokens, 8),
        dtype=preset.dtype,
        compute_dtype=preset.compute_dtype,
        content_policy="Prompts are made by a public program from public seeds; completions are answers to them.",
    )
    volunteer, progress = identity("volunteer"), example_progress()
    needs = requirements_of(run, Role.VOLUNTEER)
    engine = choose_engine(AUTO, torch.device("cpu"))
    console = Console(
        file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(COMMAND, markup=False, style="bold")
    for text in volunteer_introduction(
        run, needs, needs.disk_bytes, volunteer, platform_home() / "seat-1", "cpu", engine, {}
    ):
        for line in wrapped(text, COLUMNS):
            console.print(line, markup=False)
    console.print()
    worker = {"run": run.name, "peer": volunteer.peer_id, **progress_document(progress)}
    console.print(WorkerScreen(worker, now=NOW))
    console.print()  # or the frame cuts the last line's descenders
    return without_downloads(console.export_svg(title="p2prl join", theme=THEME, unique_id="join"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "join.svg")
    out = parser.parse_args().out
    text = picture()
    if (size := len(text.encode())) > MAX_BYTES:
        sys.exit(f"{out} would have {size:,} bytes; the limit is {MAX_BYTES:,}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"{out}: {size:,} bytes")


if __name__ == "__main__":
    main()
