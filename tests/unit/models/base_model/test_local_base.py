"""A model on disk as a run's first weights: equal to the learner's published weights, or refused with a reason."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from p2prl.errors import ConfigError, MachineError
from p2prl.learner.new_run_plan import RunPlan, run_manifest
from p2prl.models.base_model.local_base import flatten_local_base
from p2prl.models.run_files.export import export_run_files
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import RunManifest

PLAN = RunPlan(name="unit", goal="test", task="chain4", model="owner/public", base_model="owner/public")


def manifest_of(dtype: str) -> RunManifest:
    loaded = tiny_model(seed=3)
    files = export_run_files(loaded)
    return run_manifest(
        replace(PLAN, dtype=dtype),
        layout_of(loaded.model, dtype),
        Identity(bytes(16)).public_key,
        files,
        now=time.time(),
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The fp32 model every run here started from, as stored on a user's disk."""
    loaded = tiny_model(seed=3)
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_local_base_equals_the_first_published_weights(tmp_path: Path, model: Path, dtype: str) -> None:
    # A learner trains in fp32 and rounds what it publishes; here the model is read in the run's dtype at once.
    master = tiny_model(seed=3).model
    published = bytes(flatten(master, layout_of(master, dtype)))
    before = contents(model)
    state = flatten_local_base(model, manifest_of(dtype), tmp_path / "blobs")
    assert state == blake3(published).digest()
    assert contents(tmp_path / "blobs") == {state.hex(): published}
    assert contents(model) == before


def test_other_architecture_is_refused_with_the_difference(tmp_path: Path, model: Path) -> None:
    manifest = manifest_of("bfloat16")
    larger = msgspec.structs.replace(manifest, layout=bytes(32), parameters=123_456)
    with pytest.raises(ConfigError, match="this run's model 123,456") as caught:
        flatten_local_base(model, larger, tmp_path / "blobs")
    assert "owner/public" in caught.value.remedy
    with pytest.raises(ConfigError, match="does not have the tensor names and shapes"):
        flatten_local_base(model, msgspec.structs.replace(manifest, layout=bytes(32)), tmp_path / "blobs")
    assert not (tmp_path / "blobs").exists()


def test_broken_model_and_full_disk_have_messages(tmp_path: Path, model: Path) -> None:
    manifest = manifest_of("bfloat16")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MachineError, match="cannot write"):
        flatten_local_base(model, manifest, tmp_path / "file")
    (model / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        flatten_local_base(model, manifest, tmp_path / "blobs")
