"""Newcomers with a model on disk, as real processes: the run's model saves the download, another is detected."""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.net.storage.chain_reader import ChainReader
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import BlobRef, PolicyManifest, blob_of
from p2prl_lab.testing.run_audit import recorded_steps
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, rows, status_of, wait_until

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]


def test_a_newcomer_uses_the_runs_base_and_reports_a_wrong_one(tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "terminals", forks=True)
    run, public, other = tmp_path / "runs" / "mine", tmp_path / "public", tmp_path / "other"
    for folder, seed in ((public, 3), (other, 77)):
        loaded = tiny_model(seed=seed)
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
    before = {path: path.read_bytes() for folder in (public, other) for path in folder.iterdir()}
    options = ("--in", str(run.parent), "--model", str(public), "--probe", "off")  # a model that knows nothing
    made = command("init", "mine", *options, environment=swarm.environment())
    assert made.returncode == 0, made.stderr
    # Steps as small as a large model's, so that a patch is a small part of the weights even for a late newcomer.
    settings = run / "run.toml"
    text = settings.read_text()
    settings.write_text(re.sub(r"(?m)^learning_rate *= *\S+", "learning_rate = 1e-6", text))
    assert settings.read_text() != text
    homes = {"wrong": tmp_path / "wrong", "right": tmp_path / "right"}
    with swarm.running():
        swarm.start("learner", "learn", str(run), "--updates", "0", *LISTEN)
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text(), seconds=60, what="a link")

        def join(name: str, base: Path) -> RoleProcess:
            return swarm.start(name, "join", link.strip(), *LISTEN, "--base", str(base), "--json", home=homes[name])

        wrong = join("wrong", other)
        wait_until(lambda: recorded_steps(run) >= 3, seconds=120, what="a second version")
        right = join("right", public)
        # Versions are equal until a reward differs within a group, and equal ones are no patch.
        changed = wait_until(lambda: _changed_version(run), seconds=120, what="a version unlike the first")
        for home in homes.values():
            wait_until(partial(_has_version, home, changed), seconds=120, what="a patched version")
            wait_until(partial(_has_told, home), seconds=60, what="the bytes that it took")
        told, untold = _leave(right), _leave(wrong)
    weights_bytes = 2 * sum(parameter.numel() for parameter in tiny_model(seed=3).model.parameters())
    assert told["whole_bytes"] == 0, right.log
    assert weights_bytes / 4 < told["spared_bytes"] <= weights_bytes
    assert untold["spared_bytes"] == 0
    assert untold["brought_bytes"] > 0
    assert "the base saved" in right.log
    assert "not the model this run started from" in wrong.log
    assert not list(tmp_path.glob("*/*/*/blobs/base.new"))
    assert {path: path.read_bytes() for folder in (public, other) for path in folder.iterdir()} == before
    published = _published(run)
    for home in homes.values():  # bf16 words, patched in place
        (chain,) = home.glob("*/*/blobs/chain")
        held = ChainReader(chain)
        assert held.state is not None
        assert max(held.state.roots) > 0
        for version in held.state.roots:
            ref = published[version]
            assert blob_of(held.copy_of(version), ref.chunk_bytes) == ref


def _published(run: Path) -> dict[int, BlobRef]:
    """The weights of each version of a run."""
    return {
        manifest.version: manifest.weights
        for (raw,) in rows(run / "journal.db", "SELECT raw FROM policies")
        for manifest in [body_of(open_envelope(raw, now=None), PolicyManifest)]
    }


def _changed_version(run: Path) -> int:
    """The first version whose weights are not the start's; 0 while there is none."""
    published = _published(run)
    return next((version for version in sorted(published) if published[version] != published[0]), 0)


def _has_version(home: Path, version: int) -> bool:
    return bool(status_of(home).get("version", 0) >= version)


def _has_told(home: Path) -> bool:
    """Whether the network process has reported what it downloaded; it reports versions sooner."""
    return bool(status_of(home).get("brought_bytes", 0) > 0)


def _leave(role: RoleProcess) -> dict[str, Any]:
    """Send Ctrl-C and return the final JSON document."""
    role.process.send_signal(signal.SIGINT)
    assert role.wait(60) == 130, role.log[-2000:]
    document = next(json.loads(line) for line in reversed(role.log.splitlines()) if line.startswith("{"))
    assert isinstance(document, dict)
    return document
