"""Golden groups and the self-test at join: what honest, noisy and broken machines are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from p2prl.errors import MachineError, RemoteProtocolError
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.models.self_test import golden_creation
from p2prl.models.self_test.golden_creation import golden_files, make_golden
from p2prl.models.self_test.golden_groups import GOLDEN_FILE, MAX_GOLDEN_BYTES, GoldenGroups, read_golden
from p2prl.models.self_test.golden_policy import BY_SIDE, BY_USE, golden_weights, policy_weights
from p2prl.models.self_test.self_test import SelfTest, SelfTestVerdict, self_test
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import NUMPY_WORDS, TORCH_DTYPES, WeightLayout, layout_of
from p2prl.protocol.limits import MAX_RUN_FILE_BYTES
from p2prl.protocol.manifests import TensorSpec
from p2prl.protocol.run_file_names import RUN_FILE_NAMES

TEMPERATURE = 0.8
CPU = torch.device("cpu")


def llama() -> LoadedModel:
    config = LlamaConfig(
        vocab_size=18, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, eos_token_id=16, bos_token_id=15, pad_token_id=17,
    )  # fmt: skip
    return LoadedModel(model=LlamaForCausalLM(config).eval(), tokenizer=tiny_model(seed=1).tokenizer)


def run_of(loaded: LoadedModel, dtype: str) -> RunModel:
    layout = layout_of(loaded.model, dtype)
    files = export_run_files(loaded)
    files |= golden_files(files, layout, dtype=dtype, temperature=TEMPERATURE)
    return read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype=dtype)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def run(request: pytest.FixtureRequest) -> RunModel:
    return run_of(tiny_model(seed=1), request.param)


def dtype_of(run: RunModel) -> str:
    return run.layout.tensors[0].dtype


Change = Callable[[torch.Tensor], torch.Tensor]


def outcome_of(run: RunModel, change: Change | None = None) -> SelfTest:
    """The self-test of an engine whose logits are changed."""
    dtype = dtype_of(run)
    policy = PolicyModel(run.build(device=CPU, dtype=dtype), run.layout)
    if change is not None:
        policy.model.lm_head.register_forward_hook(lambda _, __, logits: change(logits))
    result = self_test(run, TransformersSampler(policy), dtype=dtype, temperature=TEMPERATURE)
    assert result is not None
    return result


def noise(deviation: float) -> Change:
    generator = torch.Generator().manual_seed(3)
    return lambda logits: logits + deviation * torch.randn(logits.shape, generator=generator)


def test_honest_machine_passes(run: RunModel) -> None:
    result = outcome_of(run)
    assert result.verdict is SelfTestVerdict.FITS
    assert result.tokens == 192
    assert "passed" in result.message
    if dtype_of(run) == "float32":
        assert result.differing == 0
        assert result.noise < 1e-4
    else:
        assert 1e-3 < result.noise < result.allowed


def test_other_architecture_passes() -> None:
    for dtype in ("float32", "bfloat16"):
        assert outcome_of(run_of(llama(), dtype)).verdict is SelfTestVerdict.FITS


def test_noise_within_the_widest_band_passes(run: RunModel) -> None:
    deviation = {"float32": 1e-3, "bfloat16": 0.08}[dtype_of(run)]
    result = outcome_of(run, noise(deviation))
    assert result.verdict is SelfTestVerdict.FITS
    assert 0.5 * deviation < result.noise < 2.0 * deviation


def test_noisy_machine_is_told_what_to_try() -> None:
    """As noisy as bfloat16 in a run of float32."""
    result = outcome_of(run_of(tiny_model(seed=1), "float32"), noise(0.05))
    assert result.verdict is SelfTestVerdict.NOISY
    assert 0.025 < result.noise < 0.1
    for words in ("refused", "overclock", "--device cpu"):
        assert words in result.message


@pytest.mark.parametrize(
    "change",
    [noise(1.0), lambda logits: logits.roll(1, -1), lambda logits: 0.5 * logits],
    ids=["noise", "shift", "half"],
)
def test_wrong_results_end_the_worker_with_a_remedy(run: RunModel, change: Change) -> None:
    result = outcome_of(run, change)
    assert result.verdict is SelfTestVerdict.WRONG
    with pytest.raises(MachineError, match="known tokens differ") as error:
        _ = result.message
    assert error.value.exit_code == 4
    assert "--device cpu" in error.value.remedy


def test_run_without_golden_groups_is_not_tested(run: RunModel) -> None:
    without = {name: raw for name, raw in run.files.items() if name != GOLDEN_FILE}
    bare = replace(run, files=without)
    policy = PolicyModel(run.build(device=CPU, dtype=dtype_of(run)), run.layout)
    assert self_test(bare, TransformersSampler(policy), dtype=dtype_of(run), temperature=TEMPERATURE) is None


def test_completions_of_a_later_version_are_not_judged() -> None:
    run = run_of(tiny_model(seed=1), "float32")
    later = _edited(run, lambda document: _set(document, "revision", value=BY_USE + 1))
    policy = PolicyModel(run.build(device=CPU, dtype="float32"), run.layout)
    run = replace(run, files={**run.files, GOLDEN_FILE: later})
    assert self_test(run, TransformersSampler(policy), dtype="float32", temperature=TEMPERATURE) is None


# --- the file --------------------------------------------------------------------------------------------------


def golden_of(run: RunModel) -> GoldenGroups:
    return read_golden(run.files[GOLDEN_FILE], vocabulary=18, temperature=TEMPERATURE)


def test_file_is_small_and_the_same_every_time(run: RunModel) -> None:
    assert GOLDEN_FILE in RUN_FILE_NAMES
    raw = run.files[GOLDEN_FILE]
    assert len(raw) <= MAX_GOLDEN_BYTES <= MAX_RUN_FILE_BYTES
    assert make_golden(run, temperature=TEMPERATURE) == raw
    golden = golden_of(run)
    assert golden.engine.dtype == "float32"
    assert len({row.seed for row in golden.rows}) == len(golden.rows)
    sizes = [position.size for row in golden.rows for position in row.positions]
    assert 2.0 < float(np.median(sizes)) < 12.0, "logits spread as those of a language model do"


def test_margins_are_distances_of_noisy_logits(run: RunModel) -> None:
    """Against the model itself: gumbel noise added to its own logits gives the file's tokens and margins."""
    policy = PolicyModel(run.build(device=CPU, dtype="float32"), run.layout)
    policy.load(golden_weights(run, BY_SIDE))
    row = golden_of(run).rows[3]
    ids = torch.tensor([[*row.prompt, *row.tokens]])
    with torch.inference_mode():
        logits = policy.forward(ids, cache=None, keep=ids.shape[1])[0] / TEMPERATURE
    places = range(len(row.prompt) - 1, ids.shape[1] - 1)
    noisy = logits[list(places)] + gumbel(torch.tensor([row.seed]), torch.arange(len(row.tokens))[None], 18)[0]
    assert tuple(noisy.argmax(dim=1).tolist()) == row.tokens
    for position, scores in zip(row.positions, noisy, strict=True):
        for candidate in position.candidates:
            assert candidate.margin == pytest.approx(float(scores.max() - scores[candidate.token]), abs=1e-4)


def test_limits_of_size_are_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model(seed=1)
    files, layout = export_run_files(loaded), layout_of(loaded.model, "float32")
    bare = read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype="float32")
    raw = make_golden(bare, temperature=TEMPERATURE)
    assert raw is not None
    for name, limit in (("MOST_BYTES", layout.size_bytes), ("MAX_GOLDEN_BYTES", len(raw))):
        for allowed, expected in ((limit, raw), (limit - 1, None)):
            with monkeypatch.context() as patch:
                patch.setattr(golden_creation, name, allowed)
                assert make_golden(bare, temperature=TEMPERATURE) == expected
                made = golden_files(files, layout, dtype="float32", temperature=TEMPERATURE)
                assert made == ({} if expected is None else {GOLDEN_FILE: raw})
    monkeypatch.setattr(golden_creation, "NEW_TOKENS", 2)
    for candidates, is_made in ((18, True), (19, False)):  # of a vocabulary of 18
        monkeypatch.setattr(golden_creation, "CANDIDATES", candidates)
        assert (make_golden(bare, temperature=TEMPERATURE) is not None) == is_made


def test_completions_fit_a_short_context() -> None:
    run = run_of(llama(), "float32")
    for context, tokens in ((24, 16), (23, 15), (9, 1)):
        run.skeleton.config.max_position_embeddings = context
        raw = make_golden(run, temperature=TEMPERATURE)
        assert raw is not None
        rows = read_golden(raw, vocabulary=18, temperature=TEMPERATURE).rows
        assert {len(row.prompt) for row in rows} == {8}
        assert {len(row.positions) for row in rows} == {tokens}
    run.skeleton.config.max_position_embeddings = 8
    assert make_golden(run, temperature=TEMPERATURE) is None


def _edited(run: RunModel, edit: Callable[[Any], None]) -> bytes:
    document = json.loads(run.files[GOLDEN_FILE])
    edit(document)
    return json.dumps(document).encode()


def _set(document: Any, *path: Any, value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


EDITS = {
    "token": ("rows", 0, 2, 0, 1, 0, 0),
    "negative token": ("rows", 0, 2, 0, 1, 0, 0),
    "prompt": ("rows", 0, 0, 0),
    "empty prompt": ("rows", 0, 0),
    "no rows": ("rows",),
    "many rows": ("rows",),
    "seed": ("rows", 0, 1),
    "best": ("rows", 0, 2, 0, 1, 0, 1),
    "margin": ("rows", 0, 2, 0, 1, 1, 1),
    "logprob": ("rows", 0, 2, 0, 1, 1, 2),
    "size": ("rows", 0, 2, 0, 0),
    "no candidate": ("rows", 0, 2, 0, 1),
    "no position": ("rows", 0, 2),
    "temperature": ("temperature",),
    "revision": ("revision",),
    "name": ("other",),
}
VALUES = {
    "token": 18, "negative token": -1, "prompt": 18, "empty prompt": [], "no rows": [], "seed": -1, "best": 0.5,
    "margin": -0.5, "logprob": 0.5, "size": -1.0, "no candidate": [], "no position": [], "temperature": 1.0,
    "revision": -1, "name": 1,
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_damaged_file_is_the_runs_fault(edit: str) -> None:
    run = run_of(tiny_model(seed=1), "float32")
    rows = json.loads(run.files[GOLDEN_FILE])["rows"] * 6
    bad = _edited(run, lambda document: _set(document, *EDITS[edit], value=VALUES.get(edit, rows)))
    with pytest.raises(RemoteProtocolError):
        read_golden(bad, vocabulary=18, temperature=TEMPERATURE)


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b"[" * 60_000, b" " * (MAX_GOLDEN_BYTES + 1)])
def test_any_bytes_are_the_runs_fault(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_golden(raw, vocabulary=18, temperature=TEMPERATURE)


# --- the policy ------------------------------------------------------------------------------------------------


def test_golden_policy_is_the_same_in_every_dtype() -> None:
    """Its values have at most 8 significant bits: known bytes, equal after a cast to float32."""
    model = tiny_model(seed=1).model
    values = {}
    for dtype in TORCH_DTYPES:
        layout = layout_of(model, dtype)
        raw = policy_weights(layout, {"transformer.wte.weight": 4.0})
        words = np.frombuffer(raw, dtype=NUMPY_WORDS[dtype])
        values[dtype] = torch.from_numpy(words.copy().view(np.uint8)).view(TORCH_DTYPES[dtype]).float()
    assert torch.equal(values["float32"], values["bfloat16"])
    assert torch.equal(values["float32"], values["float16"])
    assert bool(values["float32"].isfinite().all())


def test_matrices_have_unit_gain_and_vectors_are_neutral() -> None:
    layout = WeightLayout(
        (
            TensorSpec("embedding", "float32", (100, 64)),
            TensorSpec("matrix", "float32", (3000, 2000)),
            TensorSpec("norm.weight", "float32", (64,)),
            TensorSpec("norm.bias", "float32", (64,)),
        )
    )
    raw = np.frombuffer(policy_weights(layout, {"embedding": 4.0}), dtype="<f4")
    embedding, matrix, rest = np.split(raw, [6400, 6_006_400])
    assert matrix.std() * 2000**0.5 == pytest.approx(1.0, rel=0.42)
    assert embedding.std() * 64**0.5 == pytest.approx(4.0, rel=0.42)
    assert abs(matrix.mean()) < 1e-4
    assert rest.tolist() == [1.0] * 64 + [0.0] * 64
    rows = matrix.reshape(3000, 2000)
    assert not any(np.array_equal(rows[0], row) for row in rows[1:]), "longer than a block, and no row repeats"
