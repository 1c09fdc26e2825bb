"""Import of a researcher's file: its top level runs in the confined process, on a validator's machine too."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from p2prl.tasks.sandbox.confinement import LANDLOCK
from p2prl.tasks.sandbox.pool import PoolConfig, ScorerPool, TaskScoring
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec

CODE = """
import json, os, socket, subprocess
KEY, OUT, PORT = {key!r}, {out!r}, {port}
def allowed(attempt):
    try:
        attempt()
    except OSError:
        return False
    return True
DONE = [
    allowed(lambda: open(KEY).read()),
    allowed(lambda: open(OUT, "w").write("x")),
    allowed(lambda: socket.create_connection(("127.0.0.1", PORT), timeout=5)),
]
def score(prompts, completions, **columns):
    return [float(sum(2**n for n, done in enumerate(DONE) if done))] * len(completions)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
def test_top_level_of_a_file_reads_no_key_writes_nothing_and_opens_no_connection(tmp_path: Path) -> None:
    key, out, code = tmp_path / "key.json", tmp_path / "written", tmp_path / "scorer.py"
    key.write_text("secret")
    spec = scoring_spec(Scoring(rewards=(Reward(scorer="function", options={"function": "score"}),)))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        code.write_text(CODE.format(key=str(key), out=str(out), port=server.getsockname()[1]))
        with ScorerPool({"own": TaskScoring(spec, code)}, PoolConfig(workers=1)) as pool:
            if LANDLOCK not in pool.protection.layers:
                pytest.skip("this kernel has no Landlock")
            (scored,) = pool.score("own", {"prompt": "p"}, [("a", True)], account=b"a")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (scored.value, scored.failure) == (0.0, "")
    assert not out.exists()
