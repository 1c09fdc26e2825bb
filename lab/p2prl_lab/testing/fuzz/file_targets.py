"""Targets of what a run ships or a stranger hands over as a file: weights, patches, run files, data, ledger dumps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.replay_statistics.baselines import NoiseBaselines, NoiseEvidence
from p2prl.models.run_files.checks import check_config, json_file, read_end_tokens
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import read_run_model
from p2prl.models.self_test.golden_creation import golden_files
from p2prl.models.self_test.golden_groups import GOLDEN_FILE, GoldenGroups, read_golden
from p2prl.models.tokenizer.backend import read_backend, read_special_tokens
from p2prl.models.tokenizer.text_codec import library_panics
from p2prl.models.weights.layout import check_weights, copy_weights, flatten, layout_of
from p2prl.patches.decode import apply_route
from p2prl.patches.encode import encode_patch
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.words import BF16
from p2prl.protocol.kinds import Kind
from p2prl.protocol.rollout_group import EngineClass
from p2prl.scoreboard.ledger_dump import FORMAT, verify_dump
from p2prl.tasks.data.packed_data import PackedPrompts, PackedRows, prompt_record, row_record
from p2prl.tasks.data.packed_file import PackedWriter
from p2prl.tasks.wasm.runtime import Program, from_text
from p2prl_lab.testing.fuzz import mutations
from p2prl_lab.testing.fuzz.target import PROTOCOL_ERRORS, Target
from p2prl_lab.testing.fuzz.values import value_of
from p2prl_lab.testing.fuzz.vector_world import VectorWorld
from p2prl_lab.testing.tokenizer_bombs import bombs

_JSON = (mutations.of_json, mutations.of_json, mutations.of_bytes)
_WORDS = 600
_LONGEST_READ = 4
"""Records of a packed file that are read."""

_ENVIRONMENTS = Path(__file__).parents[4] / "examples" / "wasm"

_TEXT = "The 12 cats\n\tsat – on 3.5 mats."
_MODEL_SHARE = 0.05
"""A model on the meta device takes twenty milliseconds."""


def file_targets(world: VectorWorld, loaded: LoadedModel, folder: Path) -> Iterator[Target]:
    """All of them. `loaded` is the run's model; `folder` takes the file under test, one at a time."""
    files = export_run_files(loaded)
    layout = layout_of(loaded.model, "bfloat16")
    vocabulary: int = loaded.model.config.vocab_size
    yield from _weights(loaded.model)
    yield _patch()
    yield from _run_files(files, layout.digest, layout.size_bytes, vocabulary)
    golden = golden_files(files, layout, dtype="bfloat16", temperature=1.0)[GOLDEN_FILE]
    yield Target(
        name="golden.json",
        decode=partial(read_golden, vocabulary=vocabulary, temperature=1.0),
        examples=(golden,),
        changes=_JSON,
        make=lambda rng: msgspec.json.encode(value_of(GoldenGroups, rng)),
        share=0.3,
    )
    if find_spec("wasmtime") is not None:
        yield _module()
    yield from _packed(folder)
    yield _dump(world, folder)
    yield _baselines()


def _module() -> Target:
    """An environment that a run brings. Mutants may spend all their fuel, which takes 40 ms."""

    def decode(data: bytes) -> None:
        episode = Program(data).episode(7)
        episode.step("47*63")
        episode.reward(episode.ended)

    examples = tuple(from_text(path.read_bytes()) for path in sorted(_ENVIRONMENTS.glob("*.wat")))
    return Target(name="module", decode=decode, examples=examples, share=0.05)


def _weights(model: Any) -> Iterator[Target]:
    layout = layout_of(model, "bfloat16")
    example = bytes(flatten(model, layout))

    def decode(data: bytes) -> None:
        check_weights(model, layout, data)
        copy_weights(model, layout, data)

    def make(rng: random.Random) -> bytes:
        words = np.random.default_rng(rng.getrandbits(32)).integers(0, 1 << 16, len(example) // 2)
        return words.astype("<u2").tobytes()

    yield Target(name="weights", decode=decode, examples=(example,), make=make, share=0.1)


def _patch() -> Target:
    rng = np.random.default_rng(0)
    old = (rng.standard_normal(_WORDS).astype(np.float32).view(np.uint32) >> 16).astype(BF16.dtype)
    few, many = old.copy(), rng.integers(0, 1 << 16, _WORDS).astype(BF16.dtype)
    few[rng.integers(0, _WORDS, 40)] += 1
    streams = [
        b"".join(encode_patch([(old, new)], words=_WORDS, word_type=BF16, kernels=NUMPY_KERNELS))
        for new in (few, many, old)
    ]

    def decode(data: bytes) -> None:
        pieces = (data[start : start + 97] for start in range(0, len(data), 97))
        for _ in apply_route(
            [pieces],
            lambda start, count: old[start : start + count],
            words=_WORDS,
            word_type=BF16,
            kernels=NUMPY_KERNELS,
        ):
            pass

    return Target(name="patch", decode=decode, examples=tuple(streams), share=2.0)


def _run_files(
    files: Mapping[str, bytes], layout_digest: bytes, weight_bytes: int, vocabulary: int
) -> Iterator[Target]:
    def with_config(data: bytes) -> None:
        # A meta device holds no weights, whatever sizes the file names.
        read_run_model(
            {**files, "config.json": data},
            layout_digest=layout_digest,
            weight_bytes=weight_bytes,
            dtype="bfloat16",
            open_tokenizer=lambda *_: None,
        )

    def with_tokenizer(data: bytes) -> None:
        backend = read_backend(data, ["<pad>"] if b"<pad>" in data else [], vocabulary)
        with library_panics():
            try:
                backend.decode(backend.encode(_TEXT).ids)
            except Exception as error:  # as the tokenizer's process answers whatever the library raises
                raise RemoteProtocolError(str(error)) from error

    config = files["config.json"]
    yield Target(
        name="config.json: checks",
        decode=lambda data: check_config(json_file({"config.json": data}, "config.json")),
        examples=(config, _with_ropes(config)),
        changes=_JSON,
    )
    yield Target(name="config.json", decode=with_config, examples=(config,), changes=_JSON, share=_MODEL_SHARE)
    yield Target(
        name="tokenizer.json",
        decode=with_tokenizer,
        examples=(files["tokenizer.json"], *(bomb.rules for bomb in bombs() if len(bomb.rules) < 100_000)),
        changes=_JSON,
    )
    yield Target(
        name="tokenizer_config.json",
        decode=lambda data: read_special_tokens(json_file({"tokenizer_config.json": data}, "tokenizer_config.json")),
        examples=(files["tokenizer_config.json"],),
        changes=_JSON,
    )
    yield Target(
        name="generation_config.json",
        decode=lambda data: read_end_tokens({"generation_config.json": data}, vocabulary),
        examples=(files["generation_config.json"],),
        changes=_JSON,
    )


def _with_ropes(config: bytes) -> bytes:
    """The configuration with every setting that the checks look into."""
    ropes = {"rope_type": "linear", "factor": 2.0, "full_attention": {"rope_type": "yarn"}}
    settings = {"rope_parameters": ropes, "rope_scaling": {"type": "linear"}, "layer_types": ["full_attention"]}
    return msgspec.json.encode(msgspec.json.decode(config) | settings | {"num_experts": 4, "num_key_value_heads": None})


def _packed(folder: Path) -> Iterator[Target]:
    path = folder / "packed"

    def written(records: list[bytes]) -> bytes:
        with PackedWriter(path) as writer:
            for record in records:
                writer.append(record)
            writer.finish()
        return path.read_bytes()

    def prompts(data: bytes) -> None:
        path.write_bytes(data)
        opened = PackedPrompts(path)
        opened.longest  # noqa: B018 - a property that reads the file
        for row in range(min(len(opened), _LONGEST_READ)):
            opened.token_ids(row)

    def rows(data: bytes) -> None:
        path.write_bytes(data)
        opened = PackedRows(path)
        for row in range(min(len(opened), _LONGEST_READ)):
            opened.row(row)

    plain = [{"prompt": "2 + 2", "answer": "4", "rendered": "2 + 2"}, {"prompt": "ü", "answer": "1"}]
    yield Target(
        name="packed prompts", decode=prompts, examples=(written([prompt_record((1, 2, 3)), prompt_record((4,))]),)
    )
    yield Target(name="packed rows", decode=rows, examples=(written([row_record(row) for row in plain]),))


def _dump(world: VectorWorld, folder: Path) -> Target:
    path, pack = folder / "dump", msgspec.msgpack.encode

    def dumped(entries: list[bytes], head: bytes) -> bytes:
        header = pack([FORMAT, world.envelopes[Kind.RUN_MANIFEST], head])
        return b"".join(map(pack, (header, *entries)))

    def decode(data: bytes) -> None:
        path.write_bytes(data)
        verify_dump(path, run=world.run)

    entries, head = world.ledger
    examples = (dumped(list(entries), head), dumped(list(entries[:1]), b""))
    return Target(name="ledger dump", decode=decode, examples=examples, allowed=(*PROTOCOL_ERRORS, ConfigError))


def _baselines() -> Target:
    noise = NoiseBaselines()
    pair = (EngineClass("a", "1", "float32", "cpu"), EngineClass("b", "1", "float32", "cpu"))
    for number in range(3):
        noise.record(pair, bytes([number]) * 32, NoiseEvidence(), "", now=1.0)
    return Target(
        name="noise baselines",
        decode=lambda data: NoiseBaselines.decode(data).measured(pair, 2.0),
        examples=(noise.encode(),),
        changes=_JSON,
    )
