"""Run manifests and policy manifests: the two documents that define a run and its policy versions.

A *run manifest* is the root of trust: the join link carries its digest, so no peer can substitute another model, task,
license or learner key. A *policy manifest* names one version of the weights by the hash of a tree over its chunks. The
learner signs both. Both are checked here before anything is allocated for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES, Digest, chunk_digest, digest
from p2prl.protocol.hash_tree import TreeBuilder, bound_top, leaf_of, top_by_proof, top_of
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.protocol.run_file_names import RUN_FILE_NAMES, task_of_module
from p2prl.protocol.wire_codec import Wire, encode

_PACKED_HEADER_BYTES = 16
"""Of a packed file, before its offsets (`p2prl/tasks/data/packed_file.py`)."""

NO_BASE = -1
"""Base of a keyframe: a patch that starts from zeros and needs no other version."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Types in which weights may be sent, and the bytes of one weight."""

MIN_TASK_WEIGHT, MAX_TASK_WEIGHT = 1e-6, 1e6
"""Bounds on a task's weight in the mix. They keep sums exact enough that every machine draws the same task."""

_USUAL_CHUNK_BYTES, _ENOUGH_CHUNKS = 64 * 1024, 32  # smaller ones would cost a long line more round trips


class TensorSpec(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor of a layout. Its place in the layout is its place in the weight bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


class BlobRef(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A byte string of any size, named by a hash tree over its chunks. Every chunk but the last has `chunk_bytes`."""

    size_bytes: int
    chunk_bytes: int
    tree: bytes | tuple[bytes, ...]
    """Hash of the tree (`hash_tree.bound_top`). In documents that were signed under a wire version below 7: the digests
    of all chunks, from which it follows."""

    @property
    def total(self) -> int:
        """Number of chunks."""
        return -(-self.size_bytes // self.chunk_bytes)

    @property
    def root(self) -> Digest:
        """The blob's name: a digest over its sizes and its tree."""
        return digest("p2prl/blob-root/v2" if isinstance(self.tree, bytes) else "p2prl/blob-root/v1", encode(self))

    @property
    def tree_hash(self) -> bytes:
        """Hash of the tree."""
        if isinstance(self.tree, bytes):
            return self.tree
        return bound_top(self.size_bytes, self.chunk_bytes, top_of(listed_nodes(self.tree)))

    def span(self, index: int) -> tuple[int, int]:
        """(offset, length) of chunk `index`, in bytes."""
        offset = index * self.chunk_bytes
        return offset, min(self.chunk_bytes, self.size_bytes - offset)

    def proves(self, index: int, data: bytes | memoryview, proof: bytes) -> bool:
        """Whether these are the bytes of chunk `index`, which must be one of the blob's."""
        return len(data) == self.span(index)[1] and self.proves_name(index, chunk_digest(data), proof)

    def proves_name(self, index: int, name: bytes, proof: bytes) -> bool:
        """Whether chunk `index` has this digest."""
        top = top_by_proof(leaf_of(name), index, self.total, proof)
        return top is not None and bound_top(self.size_bytes, self.chunk_bytes, top) == self.tree_hash

    def check(self, *, max_bytes: int) -> None:
        """Raise `RemoteProtocolError` unless sizes, counts and digests agree and stay within `max_bytes`."""
        if not 0 < self.size_bytes <= max_bytes:
            raise RemoteProtocolError(f"blob of {self.size_bytes} bytes is outside 1..{max_bytes}")
        if not limits.MIN_CHUNK_BYTES <= self.chunk_bytes <= limits.MAX_CHUNK_BYTES:
            raise RemoteProtocolError(f"chunk size {self.chunk_bytes} is outside the limits")
        if self.total > limits.MAX_CHUNKS:
            raise RemoteProtocolError(f"blob of {self.total} chunks; at most {limits.MAX_CHUNKS}")
        names = (self.tree,) if isinstance(self.tree, bytes) else self.tree
        if not isinstance(self.tree, bytes) and len(names) != self.total:
            raise RemoteProtocolError(f"{len(names)} chunks cannot make {self.size_bytes} bytes")
        if any(len(name) != DIGEST_BYTES for name in names):
            raise RemoteProtocolError("a blob's digests do not have 32 bytes")


@lru_cache(maxsize=16)
def listed_nodes(chunk_names: tuple[bytes, ...]) -> bytes:
    """Nodes of the tree over listed digests. The lists fit envelopes, so that those remembered have 16 MB at most."""
    return TreeBuilder(chunk_names).nodes


def tree_of(data: bytes | memoryview, chunk_bytes: int) -> tuple[BlobRef, bytes]:
    """Cut `data` into chunks of `chunk_bytes`: (their blob, the nodes of its tree)."""
    view = memoryview(data)
    names = (chunk_digest(view[start : start + chunk_bytes]) for start in range(0, len(view), chunk_bytes))
    nodes = TreeBuilder(names).nodes
    return BlobRef(len(view), chunk_bytes, bound_top(len(view), chunk_bytes, top_of(nodes))), nodes


def blob_of(data: bytes | memoryview, chunk_bytes: int) -> BlobRef:
    """Cut `data` into chunks of `chunk_bytes` and name them."""
    return tree_of(data, chunk_bytes)[0]


def chunk_bytes_for(size_bytes: int, *, pieces: int = 256) -> int:
    """The power of two nearest `size/pieces`, within the limits; no small chunks where there are enough large ones."""
    ideal = max(1.0, size_bytes / pieces, min(_USUAL_CHUNK_BYTES, size_bytes / _ENOUGH_CHUNKS))
    power = 1 << max(0, round(math.log2(ideal)))
    return min(limits.MAX_CHUNK_BYTES, max(limits.MIN_CHUNK_BYTES, power))


class RunFile(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A configuration or tokenizer file, or an environment's module, that every volunteer needs."""

    name: str
    blob: BlobRef


class TaskShare(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A task of the mix and its share of the work slots."""

    task: str
    weight: float


class DataSet(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The data behind a task of the mix whose prompts are rows instead of made from a seed."""

    task: str
    """Name of the task in the mix."""
    rows: int
    prompts: BlobRef
    """Packed prompts, as token ids: all that sampling needs (`p2prl/tasks/data/packed_data.py`)."""
    answers: BlobRef
    """Packed rows as the scorers see them. Only learner and validators download them."""
    scoring: str
    """Scorers and their weights (`p2prl/tasks/scorers/spec.py`), canonical JSON."""
    code: BlobRef | None = None
    """Python file with the researcher's own scorer, if the scoring names one. Run in a sandbox, by the learner and by
    validators whose owner agreed; never by a volunteer."""
    held_out: bytes = b""
    """Digest of the packed evaluation rows, which are never trained on; empty if there are none."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` for the first impossible field."""
        _require(0 < len(self.task) <= limits.MAX_NAME_CHARS and self.task.isprintable(), "a task has no usable name")
        _require(1 <= self.rows <= limits.MAX_DATA_ROWS, "a data set has too many rows, or none")
        frame = _PACKED_HEADER_BYTES + 8 * (self.rows + 1)
        for blob in (self.prompts, self.answers):
            blob.check(max_bytes=limits.MAX_DATA_BYTES)
        least, most = frame + 4 * self.rows, frame + 4 * limits.MAX_PROMPT_TOKENS * self.rows
        _require(least <= self.prompts.size_bytes <= most, "the size of the prompts does not fit the rows")
        _require(frame + 2 * self.rows <= self.answers.size_bytes, "the size of the answers does not fit the rows")
        if self.code is not None:
            self.code.check(max_bytes=limits.MAX_SCORER_CODE_BYTES)
        _require(
            0 < len(self.scoring) <= limits.MAX_SCORING_CHARS and self.scoring.isprintable(), "scoring is unusable"
        )
        _require(len(self.held_out) in (0, DIGEST_BYTES), "digests have 32 bytes")


class Sampling(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Sampling settings. No top-p, top-k or penalties: hard masks flip between decoding and replay."""

    temperature: float
    max_new_tokens: int
    group_size: int


class RunManifest(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Signed description of a run: all that a stranger must know, and can rely on, before lending a GPU to it.

    It has many fields because it is a document. The digest of its envelope (`envelope_digest`) is the run's identity.
    """

    name: str
    """Shown to people; the digest, not the name, identifies the run."""
    goal: str
    """Purpose of the run in one sentence."""
    learner: bytes
    """The learner's public key: the only one that may sign policies and receipts."""
    created_ms: int
    base_model: str
    """Origin of the architecture and the first weights. For people; the files below decide."""
    parameters: int
    layout: bytes
    """Digest of the tensor layout (`layout_digest`)."""
    dtype: str
    """Type in which the weights are sent."""
    files: tuple[RunFile, ...]
    tokenizer: bytes
    """Chunk-root digest of tokenizer.json, so that token ids mean the same everywhere."""
    tasks: tuple[TaskShare, ...]
    sampling: Sampling
    staleness_bound: int
    """S, in learner updates: rollouts with a greater staleness are not trained on."""
    publish_every: int
    """κ: learner updates between published versions."""
    reward: str
    """Reward specification in one line (`success`, `success+0.2*process:clip+delta`, `success+orm@DIGEST`)."""
    licence: str
    """License of the resulting weights."""
    content_policy: str
    """Nature of the prompts, and of what may be generated."""
    compute_dtype: str = ""
    """Type in which every engine computes; empty for `dtype`. float32 holds every shorter type exactly, so weights can
    be sent short and still replay to the last bit."""
    data_sets: tuple[DataSet, ...] = ()
    """Data of those tasks of the mix whose prompts are rows."""
    prompt_frame: tuple[str, str] = ("", "")
    """Text before and after every procedural prompt: the model's chat template around one user message, rendered once
    when the run was made. No volunteer evaluates a template."""
    turn_frame: tuple[str, str] = ("", "")
    """Text before and after every message of an environment: what the chat template puts between two answers of the
    model, around the user message, without the stop token that ends the first."""
    lora: LoraSpec | None = None
    """Adapters, if those alone are trained."""

    @property
    def weight_bytes(self) -> int:
        """Size of every policy version's weights: tied tensors count once in `parameters`, as in the layout."""
        return self.parameters * DTYPE_BYTES[self.dtype]

    @property
    def modules(self) -> dict[str, RunFile]:
        """Environments that the run brings, by the name of their task, which is no data task."""
        tasks = {share.task for share in self.tasks} - {data.task for data in self.data_sets}
        return {task: file for file in self.files if (task := task_of_module(file.name)) in tasks}

    @property
    def engine_dtype(self) -> str:
        """Type in which every engine computes."""
        return self.compute_dtype or self.dtype

    def check(self) -> None:
        """Raise `RemoteProtocolError` for the first field that no honest learner would send."""
        for name, text, most in (
            ("name", self.name, limits.MAX_NAME_CHARS),
            ("goal", self.goal, limits.MAX_TEXT_CHARS),
            ("base_model", self.base_model, limits.MAX_TEXT_CHARS),
            ("licence", self.licence, limits.MAX_TEXT_CHARS),
            ("content_policy", self.content_policy, limits.MAX_TEXT_CHARS),
            ("reward", self.reward, limits.MAX_NAME_CHARS),
        ):
            if not text or len(text) > most or not text.isprintable():
                raise RemoteProtocolError(f"run manifest: {name} must have 1..{most} printable characters")
        _require(len(self.learner) == 32, "learner must be a 32-byte public key")
        _require(self.parameters > 0, "parameters must be positive")
        _require(len(self.layout) == DIGEST_BYTES and len(self.tokenizer) == DIGEST_BYTES, "digests have 32 bytes")
        _require(self.dtype in DTYPE_BYTES, "dtype must be float32, bfloat16 or float16")
        _require(self.engine_dtype in DTYPE_BYTES, "compute_dtype must be empty, float32, bfloat16 or float16")
        _require(self.weight_bytes <= limits.MAX_WEIGHT_BYTES, "parameters of this dtype are too many to send")
        names = [file.name for file in self.files]
        modules = {file.name for file in self.modules.values()}
        _require(
            len(names) <= limits.MAX_RUN_FILES
            and len(set(names)) == len(names)
            and not {*names} - RUN_FILE_NAMES - modules,
            "files must be distinct known configuration files, or modules of tasks",
        )
        for file in self.files:
            most = limits.MAX_MODULE_BYTES if file.name in modules else limits.MAX_RUN_FILE_BYTES
            file.blob.check(max_bytes=most)
        _require(0 < len(self.tasks) <= limits.MAX_TASKS, "tasks must name at least one task")
        for share in self.tasks:
            _require(0 < len(share.task) <= limits.MAX_NAME_CHARS, "a task has no usable name")
            _require(share.task.isprintable(), "a task's name must be printable")
            _require(MIN_TASK_WEIGHT <= share.weight <= MAX_TASK_WEIGHT, "task weights must be within 1e-6..1e6")
        _require(len({share.task for share in self.tasks}) == len(self.tasks), "a task is listed twice")
        self._check_data()
        if self.lora is not None:
            self.lora.check()
        _require(1 <= self.sampling.group_size <= limits.MAX_GROUP_SIZE, "group_size is out of range")
        _require(
            1 <= self.sampling.max_new_tokens <= limits.MAX_COMPLETION_TOKENS,
            "max_new_tokens is out of range",
        )
        _require(
            math.isfinite(self.sampling.temperature) and 0.01 <= self.sampling.temperature <= 100,
            "temperature must be within .01..100",
        )
        _require(0 <= self.staleness_bound <= limits.MAX_STALENESS, "staleness_bound is out of range")
        _require(1 <= self.publish_every <= limits.MAX_STALENESS, "publish_every is out of range")

    def _check_data(self) -> None:
        """Raise `RemoteProtocolError` for the first impossible data set."""
        of_data = [data.task for data in self.data_sets]
        _require(len(set(of_data)) == len(of_data), "a task has two data sets")
        _require({share.task for share in self.tasks}.issuperset(of_data), "a data set belongs to no task of the mix")
        for data in self.data_sets:
            data.check()
        total = sum(data.prompts.size_bytes + data.answers.size_bytes for data in self.data_sets)
        _require(total <= limits.MAX_DATA_BYTES, "the data sets are too large together")
        frames = (*self.prompt_frame, *self.turn_frame)
        _require(all(len(part) <= limits.MAX_TEXT_CHARS for part in frames), "prompt_frame or turn_frame is too long")


class Patch(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A patch stream (`p2prl.patches`) from the weights of an earlier version to those of this one.

    The result is equal bit for bit, so a peer that applied a patch can serve the chunks of the full weights.
    """

    base: int
    """Version it starts from; `NO_BASE` for a keyframe. Version 0 has the run's starting weights, which a newcomer may
    already have on disk."""
    base_digest: bytes
    """Digest of the weights it starts from; empty for a keyframe."""
    blob: BlobRef
    """The stream."""


class PolicyManifest(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One published policy version."""

    version: int
    """Number of versions published before. Versions only grow; two manifests of one version prove equivocation."""
    step: int
    """Learner updates done before it was published. Staleness is measured against it."""
    weights: BlobRef
    weights_digest: bytes
    """Digest of all weight bytes: the hash of all chunks together."""
    previous: bytes
    """Digest of the envelope of the version before; empty for version 0."""
    beacon: bytes
    """32 bytes, unpredictable until the first of `work_slots.VERSIONS_PER_BEACON` versions that have them in common."""
    created_ms: int
    patches: tuple[Patch, ...] = ()
    """Patches that lead to the same weights in fewer bytes. The full weights can always be downloaded instead."""

    def patch_from(self, base: int) -> Patch | None:
        """The patch that starts from `base`, if there is one."""
        return next((patch for patch in self.patches if patch.base == base), None)

    def check(self, *, weight_bytes: int) -> None:
        """Raise `RemoteProtocolError` for the first impossible field.

        `weight_bytes` is the size that the run's manifest gives all weights (`RunManifest.weight_bytes`): no version
        takes more room than its owner was told.
        """
        _require(
            0 <= self.version < 1 << 48 and self.version <= self.step < 1 << 48,
            "version or step out of range",
        )
        _require(
            len(self.weights_digest) == DIGEST_BYTES and len(self.beacon) == 32, "digests and beacons have 32 bytes"
        )
        _require(
            len(self.previous) == (DIGEST_BYTES if self.version else 0),
            "previous must name the version before",
        )
        if self.weights.size_bytes != weight_bytes:
            raise RemoteProtocolError(
                f"manifest: weights of {self.weights.size_bytes} bytes, and the run's model has {weight_bytes}"
            )
        self.weights.check(max_bytes=weight_bytes)
        bases = [patch.base for patch in self.patches]
        _require(
            len(bases) <= limits.MAX_PATCHES and len(set(bases)) == len(bases),
            "too many patches, or two with the same base",
        )
        for patch in self.patches:
            _require(NO_BASE <= patch.base < self.version, "a patch starts from an earlier version or from nothing")
            _require(
                len(patch.base_digest) == (0 if patch.base == NO_BASE else DIGEST_BYTES),
                "a patch names the digest of the weights it starts from",
            )
            # A patch as large as the weights saves nothing.
            patch.blob.check(max_bytes=self.weights.size_bytes - 1)
        together = sum(patch.blob.size_bytes for patch in self.patches)
        _require(together <= limits.MAX_PATCH_SHARE * weight_bytes, "the patches are too large together")


def layout_digest(layout: Sequence[TensorSpec]) -> Digest:
    """Name of a tensor layout: names, shapes, dtypes and their order."""
    return digest("p2prl/layout/v1", *(encode(spec) for spec in layout))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RemoteProtocolError(f"manifest: {message}")
