"""Export a checkpoint as a directory that transformers and vLLM load: open it, then write weights and model files.

If a version was published at the checkpoint's step in the exported type, its own weights are exported. With a dead band
they differ from the rounded checkpoint, and they are the policy that volunteers sampled and the learner signed. Of a
run of adapters the frozen weights are written with the adapters added, and the adapters alone beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import IntegrityError
from p2prl.models.export.model_files import exported_files, read_model_files
from p2prl.models.export.sharded_weights import WeightSource, WrittenWeights, size_of, write_weights
from p2prl.models.export.weight_source import CheckpointWeights, MergedWeights, PublishedWeights
from p2prl.models.run_model import read_run_model
from p2prl.models.weights.layout import WeightLayout
from p2prl.models.weights.lora import ADAPTER_FOLDER, adapter_files
from p2prl.protocol.manifests import PolicyManifest, RunManifest


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedExport:
    """A checkpoint and its run's files, open: nothing that is deleted later is missed."""

    source: WeightSource
    dtype: str
    files: Mapping[str, bytes]
    """The model files to write beside the weights."""
    promised: PolicyManifest | None
    """The version whose weights these should be; None if none was published in this type at the checkpoint's step."""
    is_published: bool
    """Whether the weights are read from the version itself, not from the checkpoint."""

    @property
    def size_bytes(self) -> int:
        """Bytes to be written, up to the headers of the weight files."""
        return size_of(self.source.shapes, self.dtype) + sum(map(len, self.files.values()))

    @property
    def has_chat_template(self) -> bool:
        return "chat_template.jinja" in self.files


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """The weight files of an export, and the version they equal."""

    weights: WrittenWeights
    version: int | None
    """The published version whose weights these are, bit for bit; None if they are not those of a version."""


def open_export(
    checkpoint: Path,
    *,
    first: Path,
    run_files: Mapping[str, bytes],
    manifest: RunManifest,
    policy: PolicyManifest | None,
    blobs: Path,
    dtype: str,
    chained: memoryview | None = None,
) -> OpenedExport:
    """Open `checkpoint` to be exported in `dtype`.

    `first` is the directory of the run's first weights, `run_files` the files volunteers download, `policy` the version
    published at the checkpoint's step, `blobs` the folder of published weights and `chained` that version's weights if
    they have no file there. Raises `FileNotFoundError` when the checkpoint is being deleted.
    """
    adapters = checkpoint / ADAPTER_FOLDER
    weights = CheckpointWeights(checkpoint if manifest.lora is None else first)
    merged = None if manifest.lora is None else MergedWeights(weights, adapters, manifest.lora)
    files = read_model_files(checkpoint, first)
    model = read_run_model(
        run_files,
        layout_digest=manifest.layout,
        weight_bytes=manifest.weight_bytes,
        dtype=manifest.dtype,
        lora=manifest.lora,
    )
    written = exported_files(files, dtype=dtype, stop_ids=model.codec().stop_ids)
    if merged is not None:
        written |= adapter_files(adapters, base_model=manifest.base_model)
        return OpenedExport(source=merged, dtype=dtype, files=written, promised=None, is_published=False)
    promised = policy if dtype == manifest.dtype and weights.reordered(model.layout) else None
    published = None if promised is None else _published(promised, blobs, model.layout, chained)
    return OpenedExport(
        source=published or weights,
        dtype=dtype,
        files=written,
        promised=promised,
        is_published=published is not None,
    )


def write_model(
    opened: OpenedExport, directory: Path, *, shard_bytes: int, on_progress: Callable[[float], None]
) -> WrittenModel:
    """Write weights and model files into `directory`.

    `IntegrityError` when a published version's file does not hold the weights the learner signed.
    """
    written = write_weights(
        opened.source, directory, dtype=opened.dtype, shard_bytes=shard_bytes, on_progress=on_progress
    )
    promised = opened.promised
    is_equal = promised is not None and written.digest == promised.weights_digest
    if promised is not None and opened.is_published and not is_equal:
        raise IntegrityError(
            f"the weights of version {promised.version} in the run's blobs folder are damaged",
            remedy="Export another step, or give another --dtype, which reads the checkpoint alone.",
        )
    for name, data in opened.files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(data)
    return WrittenModel(written, promised.version if promised is not None and is_equal else None)


def _published(
    policy: PolicyManifest, blobs: Path, layout: WeightLayout, chained: memoryview | None
) -> PublishedWeights | None:
    """The version's weights, if the learner still keeps them: it deletes those outside the staleness window."""
    if chained is not None:
        return PublishedWeights(chained, layout)
    path = blobs / policy.weights.root.hex()
    try:
        return PublishedWeights(path, layout) if path.stat().st_size == layout.size_bytes else None
    except FileNotFoundError:
        return None
