"""The control socket of a sealed role: its owner gets in, and no other socket can be made or accepted at."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PROGRAM = """
import json, socket, sys, threading
from pathlib import Path
from p2prl.confinement.role_confinement import confine_calls, confine_files
from p2prl.controls.control_socket import ControlSocket
from p2prl.controls.messages import Answer

folder = Path(sys.argv[1])
other = socket.socket(socket.AF_UNIX)
other.bind(str(folder / "other"))
other.listen(1)
made = ControlSocket(folder)
protection = confine_calls(confine_files(folder), made.fileno())
served = threading.Thread(target=made.serve, args=(30.0, lambda request: Answer(state="working", reason=str(request))))
served.start()
refused = []
for name, attempt in (("make", lambda: socket.socket(socket.AF_UNIX)), ("accept", other.accept)):
    try:
        other.settimeout(0.2)
        attempt()
    except PermissionError:
        refused.append(name)
    except OSError as error:
        refused.append(f"{name}: {error}")
print(json.dumps({"calls": protection.calls, "refused": refused}), flush=True)
served.join()
"""

CLIENT = """
import sys
from pathlib import Path
from p2prl.controls.control_socket import ask
from p2prl.controls.messages import StatusRequest
print(ask(Path(sys.argv[1]), StatusRequest()).state)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_a_sealed_role_hears_its_owner_and_nobody_else() -> None:
    with tempfile.TemporaryDirectory() as short:  # a test's own folder may be too long for a socket's name
        folder = Path(short).resolve()
        role = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True)
        assert role.stdout is not None
        with role.stdout:
            told = json.loads(role.stdout.readline())
            done = subprocess.run(
                [sys.executable, "-c", CLIENT, str(folder)], capture_output=True, text=True, check=True, timeout=60
            )
            assert role.wait(60) == 0
    assert done.stdout.strip() == "working"
    if told["calls"] == "seccomp":
        assert told["refused"][0] == "make"
        assert len(told["refused"]) == 2
