"""The `p2prl` command line. `commands/` holds one file per command, `views/` what people see."""

from p2prl.cli.entry import main

__all__ = ["main"]
