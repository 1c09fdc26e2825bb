"""Export a checkpoint as a directory that transformers and vLLM load: open it, then write weights and model files.

If a version was published at the checkpoint's step in the exported type, its own weights are exported. With a dead band
they differ from the rounded checkpoint, and they are the policy that volunteers sampled and the learner signed. Of a
run of adapters the frozen weights are written with the adapters added, and the adapters alone beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import IntegrityError
from p2prl.models.base_model.model_folder import read_json
from p2prl.models.export.sharded_weights import WeightSource, WrittenWeights, size_of, write_weights
from p2prl.models.export.weight_source import CheckpointWeights, MergedWeights, PublishedWeights
from p2prl.models.run_model import read_run_model
from p2prl.models.weights.layout import WeightLayout
from p2prl.models.weights.lora import ADAPTER_FOLDER, adapter_files
from p2prl.protocol.manifests import PolicyManifest, RunManifest

REQUIRED_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""Every checkpoint has them; one that lacks any is being deleted."""

OPTIONAL_FILES = (
    "added_tokens.json", "generation_config.json", "merges.txt", "special_tokens_map.json", "tokenizer.model",
    "vocab.json", "vocab.txt",
)  # fmt: skip

CHAT_TEMPLATE = "chat_template.jinja"

_LOCAL_KEYS = ("_name_or_path", "_from_model_config", "name_or_path")
"""Keys that hold a path of this machine, or tell transformers to derive the generation settings again."""


def read_model_files(checkpoint: Path, first: Path) -> dict[str, bytes]:
    """The checkpoint's files besides its weights. A chat template it lacks comes from the run's first weights, `first`.

    Raises `FileNotFoundError` when a required file is gone.
    """
    files = {name: (checkpoint / name).read_bytes() for name in REQUIRED_FILES}
    for name in (*OPTIONAL_FILES, CHAT_TEMPLATE):
        if (checkpoint / name).is_file():
            files[name] = (checkpoint / name).read_bytes()
    if CHAT_TEMPLATE not in files and (first / CHAT_TEMPLATE).is_file():
        files[CHAT_TEMPLATE] = (first / CHAT_TEMPLATE).read_bytes()
    return files


def exported_files(files: Mapping[str, bytes], *, dtype: str, stop_ids: Iterable[int]) -> dict[str, bytes]:
    """The files of the export: its type in config.json, the run's end tokens in generation_config.json, no paths."""
    config = _without_local(read_json(files["config.json"], "config.json"))
    config.pop("torch_dtype", None)  # the older name of the key below
    config["dtype"] = dtype
    generation = _without_local(read_json(files.get("generation_config.json", b"{}"), "generation_config.json"))
    ends = sorted(stop_ids)
    if ends:
        generation["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    tokenizer = _without_local(read_json(files["tokenizer_config.json"], "tokenizer_config.json"))
    return {
        **files,
        "config.json": _dump(config),
        "generation_config.json": _dump(generation),
        "tokenizer_config.json": _dump(tokenizer),
    }


def _without_local(config: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in _LOCAL_KEYS}


def _dump(value: Mapping[str, object]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


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
