"""Create the README's picture of a board from a simulated ledger.

    python scripts/board_picture.py                    # writes docs/images/board.png; needs chromium on PATH

The ledger comes from a seed and its clock is simulated, so the page is the same every time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image

from p2prl.scoreboard.web.service import BoardServer
from p2prl_lab.simulated_board import simulated_source

ROOT = Path(__file__).resolve().parent.parent

WIDTH, HEIGHT = 1280, 1350
"""Height in pixels: from the goal to the learning curve."""

MAX_BYTES = 150_000
"""Largest picture, so that the README loads fast; a larger one is an error."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--timeout=15000",  # the page's event stream has no end, so virtual time would not pass
    "--run-all-compositor-stages-before-draw",  # otherwise tiles that are not drawn yet stay blank
    "--blink-settings=preferredColorScheme=1",  # light mode, independent of the desktop
)


def photograph(url: str, out: Path, chromium: str) -> None:
    """Write a screenshot of `url` to `out`."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                chromium,
                *_FLAGS,
                f"--window-size={WIDTH},{HEIGHT}",
                f"--user-data-dir={profile}/profile",
                f"--screenshot={out}",
                url,
            ],
            check=True,
            capture_output=True,
            timeout=120,
            env={**os.environ, "HOME": profile},
        )


def shrink(picture: Path) -> None:
    """Reduce to 96 colors, enough for text on a flat background; this halves the file size."""
    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(96, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "board.png")
    out = parser.parse_args().out
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        parser.error("chromium is not on PATH; install it, for example with: apt-get install chromium")
    out.parent.mkdir(parents=True, exist_ok=True)
    board, ready = BoardServer(simulated_source(), host="127.0.0.1", port=0), threading.Event()
    thread = threading.Thread(target=board.serve, args=(lambda _: ready.set(),))
    thread.start()
    try:
        ready.wait()
        photograph(board.url, out.resolve(), chromium)
    finally:
        board.stop()
        thread.join()
    shrink(out)
    size = out.stat().st_size
    if size > MAX_BYTES:
        sys.exit(f"{out} has {size:,} bytes; the limit is {MAX_BYTES:,}")
    print(f"{out}: {size:,} bytes")


if __name__ == "__main__":
    main()
