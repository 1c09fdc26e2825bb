"""Entry point of the network process: `python -m p2prl.net.process [OWN SOCKETS] FD`, as `network_config` has it."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p2prl.confinement.call_guard import Guard


def _confine(own: Path, sockets: Path) -> Guard | None:
    """Confine this process to two folders, before it imports a transport or has a second thread.

    Goes on in a child of the process that called it, which guards the child.
    """
    from p2prl.confinement.role_confinement import confine_network
    from p2prl.net.transports.hivemind import daemon_config, daemon_folder

    daemon_folder.make_in(sockets)
    return confine_network(own, sockets, (daemon_config.installed_daemon(),))


if __name__ == "__main__":
    from p2prl.redaction import log_to_stderr

    log_to_stderr()
    # Closing a subprocess transport may reap the daemon before asyncio's own watcher does, which then warns needlessly.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard = _confine(Path(sys.argv[1]), Path(sys.argv[2])) if len(sys.argv) > 2 else None

    from p2prl.net.process.network_process import serve_role

    sys.exit(asyncio.run(serve_role(int(sys.argv[-1]), guard)))
