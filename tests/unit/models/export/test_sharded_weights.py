"""Exported weight files: the library reads back what was written, rounded to nearest even, in shards that fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from p2prl.errors import ConfigError, IntegrityError
from p2prl.models.export.sharded_weights import WrittenWeights, write_weights
from p2prl.models.export.weight_source import CheckpointWeights


class Held:
    """Tensors in memory as a source, in blocks of one row."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def blocks(self, name: str) -> Iterator[Tensor]:
        yield from self._tensors[name].reshape(-1, self.shapes[name][-1])


def written(tensors: Mapping[str, Tensor], folder: Path, *, dtype: str, shard_bytes: int = 1 << 30) -> WrittenWeights:
    return write_weights(Held(tensors), folder, dtype=dtype, shard_bytes=shard_bytes, on_progress=lambda share: None)


def nearest_even_bfloat16(bits: int) -> int:
    """The upper half of a float32's bits, rounded to nearest even: the definition, on integers."""
    lower, upper = bits & 0xFFFF, bits >> 16
    return upper + (lower > 0x8000 or (lower == 0x8000 and upper & 1 == 1))


def test_bfloat16_is_rounded_to_nearest_even(tmp_path: Path) -> None:
    special = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x00000001, 0x00008000, 0x80018000, 0x7F7F0000]
    drawn = np.random.default_rng(5).integers(0, 0x7F000000, 4088).tolist()
    bits = np.array(special + drawn, dtype=np.uint32)
    source = torch.from_numpy(bits.view(np.float32).copy()).reshape(64, 64)
    written({"w": source}, tmp_path, dtype="bfloat16")
    held = load_file(tmp_path / "model.safetensors")["w"]
    assert held.dtype == torch.bfloat16
    expected = [nearest_even_bfloat16(int(each)) for each in bits]
    assert held.view(torch.uint16).reshape(-1).tolist() == expected


def test_values_outside_the_type_are_refused(tmp_path: Path) -> None:
    for value, dtype in ((65_520.0, "float16"), (3.4e38, "bfloat16"), (float("nan"), "float32")):
        with pytest.raises(ConfigError, match="'w' are not all finite in " + dtype) as caught:
            written({"w": torch.tensor([[0.0, value]])}, tmp_path, dtype=dtype)
        assert "--dtype" in caught.value.remedy
    written({"w": torch.tensor([[65_519.0]])}, tmp_path, dtype="float16")
    assert load_file(tmp_path / "model.safetensors")["w"].tolist() == [[65_504.0]]


def test_shards_fit_and_the_index_finds_every_tensor(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    sizes = {"z": (5, 8), "a": (2, 8), "m": (3, 8), "large": (40, 8), "b": (1, 8), "c": (7,)}
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in sizes.items()}
    result = written(tensors, tmp_path, dtype="bfloat16", shard_bytes=5 * 8 * 2)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert result.files == tuple(f"model-{i:05d}-of-00004.safetensors" for i in (1, 2, 3, 4))
    assert index["metadata"] == {"total_size": result.size_bytes}
    assert result.size_bytes == sum(t.numel() for t in tensors.values()) * 2
    for file in result.files:
        held = load_file(tmp_path / file)
        assert set(held) == {name for name, where in index["weight_map"].items() if where == file}
        assert sum(t.nbytes for t in held.values()) <= 80 or set(held) == {"large"}
        for name, tensor in held.items():
            assert torch.equal(tensor, tensors[name]), name
        with safe_open(tmp_path / file, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}
    assert set(index["weight_map"]) == set(tensors)
    whole = b"".join(t.view(torch.uint8).numpy().tobytes() for t in tensors.values())
    assert result.digest == blake3(whole).digest()


def test_one_file_has_no_index(tmp_path: Path) -> None:
    assert written({"w": torch.ones(2, 2)}, tmp_path, dtype="float32", shard_bytes=16).files == ("model.safetensors",)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_checkpoint_is_read_whole_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("p2prl.models.export.weight_source._BLOCK_WEIGHTS", block)
    generator = torch.Generator().manual_seed(4)
    shapes = [(), (1,), (19,), (3, 5), (2, 3, 4)]
    tensors = {f"t{i}": torch.randn(shape, generator=generator) for i, shape in enumerate(shapes)}
    save_file(tensors, tmp_path / "model.safetensors")
    source = CheckpointWeights(tmp_path)
    assert source.shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        blocks = list(source.blocks(name))
        assert torch.equal(torch.cat([each.reshape(-1) for each in blocks]), tensor.reshape(-1)), name
        longest_row = tensor[0].numel() if tensor.dim() > 1 else 1
        assert all(each.numel() <= max(block, longest_row) for each in blocks)


def test_open_checkpoint_survives_its_deletion(tmp_path: Path) -> None:
    tensors = {"w": torch.arange(12.0).reshape(3, 4)}
    save_file(tensors, tmp_path / "model.safetensors")
    source = CheckpointWeights(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert torch.equal(torch.cat(list(source.blocks("w"))), tensors["w"])
    with pytest.raises(FileNotFoundError):
        CheckpointWeights(tmp_path)


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(4)}, path)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(IntegrityError, match="is damaged"):
        CheckpointWeights(tmp_path)
    save_file({"w": torch.ones(4, dtype=torch.int64)}, path)
    with pytest.raises(IntegrityError, match="holds weights of type I64"):
        CheckpointWeights(tmp_path)
