"""Import of a researcher's file: its top level runs in the confined process, on a validator's machine too."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from p2prl.confinement.layers import LANDLOCK
from p2prl.errors import ConfigError
from p2prl.tasks.sandbox.pool import PoolConfig, ScorerPool, TaskScoring
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec
from p2prl_lab.testing.sandbox_attack import sandbox_processes
from p2prl_lab.testing.swarm_processes import has_ended

SPEC = scoring_spec(Scoring(rewards=(Reward(scorer="function", options={"function": "score"}),)))

CODE = """
import json, os, socket, subprocess
open("/dev/urandom", "rb").read(1)  # torch does so when it is imported
KEY, OUT, PORT, UNIX = {key!r}, {out!r}, {port}, {unix!r}
def allowed(attempt):
    try:
        attempt()
    except OSError:
        return False
    return True
def reach():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    socket.socket(socket.AF_UNIX).connect(UNIX)
def tell():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.sendmsg([b"x"], [], 0, UNIX)
def execute():
    if os.fork() == 0:
        try:
            os.execv("/bin/true", ["true"])
        finally:
            os._exit(1)
    if os.wait()[1]:
        raise OSError
def trace():
    import ctypes
    if ctypes.CDLL(None, use_errno=True).ptrace(0, 0, 0, 0) < 0:
        raise OSError
DONE = [
    allowed(lambda: open(KEY).read()),
    allowed(lambda: open(OUT, "w").write("x")),
    allowed(lambda: socket.create_connection(("127.0.0.1", PORT), timeout=5)),
    allowed(lambda: os.chmod(KEY, 0o644)),
    allowed(lambda: os.utime(KEY, (1, 1))),
    allowed(lambda: os.rename(KEY, KEY + "2")),
    allowed(lambda: os.unlink(KEY)),
    allowed(reach),
    allowed(tell),
    allowed(execute),
    allowed(trace),
]
def score(prompts, completions, **columns):
    return [float(sum(2**n for n, done in enumerate(DONE) if done))] * len(completions)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
def test_top_level_of_a_file_reads_no_key_writes_nothing_and_opens_no_connection(tmp_path: Path) -> None:
    key, out, code = tmp_path / "key.json", tmp_path / "written", tmp_path / "scorer.py"
    key.write_text("secret")
    before = key.stat()
    unix = str(tmp_path / "unix")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        server.setblocking(False)
        local.bind(unix)
        local.listen()
        code.write_text(CODE.format(key=str(key), out=str(out), port=server.getsockname()[1], unix=unix))
        with ScorerPool({"own": TaskScoring(SPEC, code)}, PoolConfig(workers=1)) as pool:
            if LANDLOCK not in pool.protection.layers:
                pytest.skip("this kernel has no Landlock")
            (scored,) = pool.score("own", {"prompt": "p"}, [("a", True)], account=b"a")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (scored.value, scored.failure) == (0.0, "")
    assert not out.exists()
    after = key.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


NOWHERE = """
import os
with open(os.devnull, "rb", buffering=0), open(os.devnull, "r+b"), open(os.devnull, "wb") as nowhere:  # as dill does
    nowhere.write(b"x")
def score(prompts, completions, **columns):
    return [None]
"""


def test_a_file_may_open_the_null_device_for_writing_when_it_is_imported(tmp_path: Path) -> None:
    code = tmp_path / "scorer.py"
    code.write_text(NOWHERE)
    with ScorerPool({"own": TaskScoring(SPEC, code)}, PoolConfig(workers=1)) as pool:
        (scored,) = pool.score("own", {"prompt": "p"}, [("a", True)], account=b"a")
    assert (scored.value, scored.failure) == (0.0, "value: None")


@pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
def test_a_refused_file_is_named_with_what_the_sandbox_allows(tmp_path: Path) -> None:
    secret, code = tmp_path / "secret", tmp_path / "scorer.py"
    secret.write_text("x")
    code.write_text(f"open({str(secret)!r})\n")
    with pytest.raises(ConfigError, match=r"Permission denied: '.*secret'") as caught:
        ScorerPool({"own": TaskScoring(SPEC, code)}, PoolConfig(workers=1))
    assert "The sandbox has refused it" in caught.value.remedy


PLOTS = """
import os
from matplotlib import get_cachedir, pyplot
def score(prompts, completions, **columns):
    return [float(os.path.exists(get_cachedir()))] * len(completions)
"""

STRAY = """
import os, time
from p2prl.tasks.sandbox import fork_server_main
if {patches}:
    fork_server_main.end_children = lambda children: None
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        while True: time.sleep(1000)
    os._exit(0)
os.wait()
def score(prompts, completions, **columns):
    return [1.0] * len(completions)
"""

HOLDER = """
import os, pathlib, sys
from p2prl.tasks.sandbox.pool import ScorerPool, TaskScoring
pool = ScorerPool({{"own": TaskScoring({spec!r}, pathlib.Path({code!r}))}})
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
@pytest.mark.parametrize("patches", [False, True])
def test_a_process_that_a_file_leaves_behind_ends_with_the_pool(tmp_path: Path, patches: bool) -> None:
    code = tmp_path / "scorer.py"
    code.write_text(STRAY.format(patches=patches))
    with ScorerPool({"own": TaskScoring(SPEC, code)}, PoolConfig(workers=1)) as pool:
        assert pool.score("own", {"prompt": "p"}, [("a", True)], account=b"a")[0].value == 1.0
        strays = [child for child in psutil.Process(pool.fork_server_pid).children() if not has_ended(child)]
        assert strays
    psutil.wait_procs(strays, timeout=30)
    assert sandbox_processes(os.getpid()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
def test_a_process_that_a_file_leaves_behind_ends_with_a_pool_that_is_killed(tmp_path: Path) -> None:
    code = tmp_path / "scorer.py"
    code.write_text(STRAY.format(patches=False))
    program = HOLDER.format(spec=SPEC, code=str(code))
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    processes = sandbox_processes(parent.pid)
    assert len(processes) >= 2
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    psutil.wait_procs(processes, timeout=30)
    assert sandbox_processes(parent.pid) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
def test_third_party_code_that_cannot_be_confined_is_refused_before_its_import() -> None:
    builder = "tests.unit.tasks.sandbox.builder_without_landlock"
    for spec, required, problem in (
        ("third party", True, "task 'own': third-party code scores it.*no landlock"),
        ("third party", False, "imported"),
        ("built in", True, "imported"),
    ):
        with pytest.raises(ConfigError, match=problem) as refused:
            ScorerPool({"own": TaskScoring(spec)}, PoolConfig(require_layers=required), builder=builder)
        assert ("--run-scorer" in refused.value.remedy) == (problem != "imported")


def test_a_library_that_wants_a_folder_of_its_own_is_imported_and_leaves_none(tmp_path: Path) -> None:
    code = tmp_path / "scorer.py"
    code.write_text(PLOTS)
    with ScorerPool({"own": TaskScoring(SPEC, code)}, PoolConfig(workers=1)) as pool:
        assert pool.score("own", {"prompt": "p"}, [("a", True)], account=b"a")[0].value == 0.0


def test_the_path_of_a_file_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`p2prl init` makes its run in the folder `runs` of wherever it is called; the fork server is in `/`."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def score(completions): return [0.5]\n")
    with ScorerPool({"own": TaskScoring(SPEC, Path("own.py"))}, PoolConfig(workers=1)) as pool:
        (scored,) = pool.score("own", {"prompt": "p"}, [("a", True)], account=b"a")
    assert (scored.value, scored.failure) == (0.5, "")
