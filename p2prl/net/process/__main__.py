"""Entry point of the network process: `python -m p2prl.net.process FD`, started by `p2prl.net.process.handle`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from p2prl.net.process.network_process import serve_role

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    # Closing a subprocess transport may reap the daemon before asyncio's own watcher does, which then warns needlessly.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(serve_role(int(sys.argv[1])))
