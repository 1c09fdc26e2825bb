"""Checkup of a compute device, in a process confined as a worker: a driver that needs more is a finding.

    python -m p2prl.config.confined_checkup FOLDER auto          # prints one JSON object

`p2prl doctor` starts it with an empty folder. A driver that crashes ends this process, and is a finding too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from p2prl.confinement.role_confinement import confine_calls, confine_files


def main(own: Path, device: str) -> None:
    """The steps of a worker: files, the device, system calls; then the checkup."""
    protection = confine_files(own)

    from p2prl.config.device_checkup import device_findings

    found = device_findings(device, when_open=lambda: confine_calls(protection))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
