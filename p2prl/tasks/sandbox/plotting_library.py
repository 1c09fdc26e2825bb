"""matplotlib in a process that may write no file: libraries of scorers import it, and it refuses to be imported without
a folder of its own for settings and caches.
"""

from __future__ import annotations

import importlib
import os
import tempfile

_FOLDER = "MPLCONFIGDIR"


def prepare_plotting_library() -> None:
    """Import matplotlib, where it is installed, with a folder that is gone afterwards. Before this process is confined.

    The library looks for its folder once and remembers the name; a folder that is gone later is one without settings.
    """
    with tempfile.TemporaryDirectory(prefix="p2prl-scorers-") as folder:
        os.environ[_FOLDER] = folder
        try:
            library = importlib.import_module("matplotlib")
            library.get_configdir()
            library.get_cachedir()
        except ImportError:
            return
        finally:
            del os.environ[_FOLDER]
