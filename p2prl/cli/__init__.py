"""The command line: typer commands, lazy imports, exit codes. The top floor."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of `p2prl`. Turns our errors into one sentence, a remedy and an exit code; never a traceback."""
    from p2prl.cli.app import app
    from p2prl.errors import P2PRLError

    try:
        app(prog_name="p2prl")
    except P2PRLError as error:
        print(f"p2prl: {error}", file=sys.stderr)  # noqa: T201
        if error.remedy:
            print(f"       {error.remedy}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone (`p2prl … | head`); say nothing more, to anyone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
