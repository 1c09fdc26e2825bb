"""Check that this interpreter is new enough for p2prl, before a virtual environment is created."""

import sys

if sys.version_info < (3, 11):
    sys.exit(
        f"p2prl needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. "
        "Pass another one: make demo PYTHON=/path/to/python3.11"
    )
