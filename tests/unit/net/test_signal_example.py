"""The example of docs/extending.md: a number gets from the node to its role by a change of two files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.unit.house.source_tree import ROOT

PATCH = ROOT / "examples" / "signal.patch"
PROGRAM = """
import random
from pathlib import Path

from p2prl.net.process import bridge, control
from p2prl.protocol.digests import Digest
from p2prl.protocol.kinds import Role
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs

config = NodeConfig(role=Role.VALIDATOR)
node = Node(identity_of("me"), Digest(bytes(32)), MemoryBlobs(), random.Random(1), config, 0.0)
peers = [identity_of(name).peer_id for name in ("ann", "bob", "cid")]
for peer in peers:
    node.connected(peer, 0.0)
while not node.is_banned(peers[0], 1.0):
    node.fault(peers[0], "it sent garbage", 1.0)
arrived = []
while (event := node.next_event()) is not None:
    packed = control.pack(bridge.message_of(event, path_of=lambda root: Path(root.hex()), status=lambda: None))
    arrived.append(control.parse_from_network(packed[control.LENGTH.size :]))
print([message.links for message in arrived if isinstance(message, signals.LinksLeft)])
"""


def test_a_number_reaches_the_role_by_a_change_of_two_files(tmp_path: Path) -> None:
    changed = re.findall(r"^\+\+\+ b/(.+)$", PATCH.read_text(), re.MULTILINE)
    assert len(changed) == 2
    for entry in (ROOT / "p2prl").iterdir():
        target = tmp_path / "p2prl" / entry.name
        target.parent.mkdir(exist_ok=True)
        if entry.name != "swarm":
            target.symlink_to(entry.resolve())
    for path in (ROOT / "p2prl" / "swarm").rglob("*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    subprocess.run(["git", "apply", PATCH], cwd=tmp_path, check=True)
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'lab'}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[2]\n", "")
