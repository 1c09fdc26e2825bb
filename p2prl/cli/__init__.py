"""The `p2prl` command line. `commands/` holds one file per command, `views/` formats the output."""

from p2prl.cli.entry import main

__all__ = ["main"]
