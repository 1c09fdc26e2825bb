"""Make the small language model of the presets and save it as a Hugging Face directory.

    python scripts/make_small_model.py DIRECTORY --preset arithmetic

Takes one to two minutes on two cores. `p2prl init --preset arithmetic` makes the same model itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from p2prl.cli.views.progress_bar import progress_bar
from p2prl.config.preset_materials import materials
from p2prl.models.hardware.device_choice import use_threads
from p2prl.models.small_models.language_model import make_small_model


def main() -> int:
    """Make it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--preset", choices=("arithmetic", "countdown", "reasoning"), default="arithmetic")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder, progress_bar("making the model", quiet=False) as on_progress:
        made = materials(arguments.preset, Path(folder), seed=arguments.seed, on_progress=on_progress)
        make_small_model(
            arguments.directory,
            arguments.preset,
            made.demonstration(),
            seed=arguments.seed,
            on_progress=on_progress,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
