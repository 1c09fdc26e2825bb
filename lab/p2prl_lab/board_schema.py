"""Send a board every kind of request that its own OpenAPI schema allows or forbids, with schemathesis.

    python -m p2prl_lab.board_schema [--examples 100] [--seed 0]       # exits with 1 when an answer breaks the schema

Needs schemathesis on PATH, from an environment of its own: pip install schemathesis. No answer may be a server error,
and each must have a documented status, type and shape. The board shows a simulated run. The event stream is left out:
it has no end.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile

from p2prl_lab.board_access import served


def main() -> int:
    """Run it against a board on loopback. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100, help="requests drawn for each path, at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    program = shutil.which("schemathesis")
    if program is None:
        sys.exit("schemathesis is not on PATH; install it in an environment of its own: pip install schemathesis")
    # It keeps what it has seen in the folder that it runs in.
    with served() as url, tempfile.TemporaryDirectory() as folder:
        schema = f"{url.rstrip('/')}/api/v1/openapi.json"
        drawn = ("--max-examples", str(arguments.examples), "--seed", str(arguments.seed))
        command = [program, "run", schema, "--exclude-path", "/api/v1/events", *drawn]
        return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
