"""Probes of a replay: those of an honest validator agree at the noise of its class, those of a guess never do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from p2prl.models.replay.group_replay import replay_groups
from p2prl.models.replay.probes import ReplayProbes, probes_of
from p2prl.models.replay_statistics.noise import NoiseScale
from p2prl.models.scorer_port import Scored
from p2prl.protocol.digests import digest
from p2prl.protocol.signed_group import read_group
from p2prl.protocol.verdict_probes import CANDIDATES, candidate_tokens, probe_places
from tests.unit.learner.small_run import SmallRun, identity

ME = identity("validator").public_key


def replay(
    seed: int, noise: float, completions: int = 16, shared: float = 0.0
) -> tuple[ReplayProbes, ReplayProbes, bytes]:
    """Two replays of a group whose logits deviate by `noise`, and the group's name."""
    rng = np.random.default_rng(seed)
    truth = -np.abs(rng.normal(12.0, 3.0, (completions, CANDIDATES)))
    deviations = np.full(completions, noise or 1e-3, dtype="<f4").tobytes()

    def made() -> ReplayProbes:
        moved = truth + noise * (rng.normal(size=truth.shape) + shared * rng.normal(size=(completions, 1)))
        return ReplayProbes(np.minimum(moved, 0.0).astype("<f2").tobytes(), deviations)

    return made(), made(), digest("g", seed.to_bytes(4, "little"))


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.1])
@pytest.mark.parametrize("completions", [1, 4, 16, 64])
def test_honest_probes_agree_within_the_noise_of_the_class(noise: float, completions: int) -> None:
    for seed in range(200):
        mine, theirs, group = replay(seed, noise, completions)
        assert mine.agree_with(theirs.chosen_by(ME, group), ME, group)


def test_probes_of_another_validator_group_or_guess_do_not_agree() -> None:
    for seed in range(200):
        mine, theirs, group = replay(seed, 0.1)
        other = identity("other").public_key
        assert not mine.agree_with(theirs.chosen_by(other, group), ME, group), "copied"
        assert not mine.agree_with(theirs.chosen_by(ME, digest("g", b"x")), ME, group)
        guess = np.full(16, -12.0, dtype="<f2").tobytes()
        assert not mine.agree_with(guess, ME, group)
        for bad in (b"", guess[:-2], guess + b"\0\0", np.full(16, np.nan, dtype="<f2").tobytes()):
            assert not mine.agree_with(bad, ME, group)


def test_one_wrong_probe_of_sixteen_is_found() -> None:
    """Whoever leaves out one completion has one probe that is nats away."""
    mine, theirs, group = replay(3, 0.05)
    probes = np.frombuffer(theirs.chosen_by(ME, group), dtype="<f2").copy()
    probes[5] -= 3.0
    assert not mine.agree_with(probes.tobytes(), ME, group)


def test_logits_that_are_not_numbers_have_no_probes() -> None:
    scale = NoiseScale(0.01, 1e-3)
    row = Scored((0.0,), (-1.0,), (-1.0,), (4.0,), (-1.0, float("nan")))
    assert probes_of([row], scale, 1.0) is None
    finite = Scored((0.0,), (-1.0,), (-1.0,), (4.0,), (-1.0, float("-inf")))
    made = probes_of([finite], scale, 1.0)
    assert made is not None
    assert np.isfinite(np.frombuffer(made.logprobs, dtype="<f2")).all()
    assert np.frombuffer(made.deviations, dtype="<f4").tolist() == pytest.approx([0.04])


@pytest.mark.parametrize("head", [True, False])
def test_the_scorer_gives_the_log_probs_of_the_model(tmp_path: Path, head: bool) -> None:
    """Against complete logits of one row at a time, with the output layer apart and without."""
    run = SmallRun(tmp_path, group_size=4)
    policy = run.publish(0, step=0)
    if not head:
        object.__setattr__(run.scorer._policy, "replay_head", None)
    raw = run.sealed(run.group(policy, identity("volunteer"), 0), identity("volunteer"))
    signed = read_group(raw.raw)
    seen = run.work.inspect(signed.group, peer=signed.author, beacon=policy.manifest.beacon)
    candidates = candidate_tokens(signed.digest, [ids[-1] for ids in seen.token_ids], run.work.vocabulary)
    (replayed,) = replay_groups(run.scorer, [(signed.group, seen)], run_dtype="float32", candidates=[candidates])
    assert replayed.probes is not None
    found = np.frombuffer(replayed.probes.logprobs, dtype="<f2").reshape(4, CANDIDATES)
    request = seen.assignment.requests[0]
    for row, ids in enumerate(seen.token_ids):
        with torch.no_grad():
            logits = run.loaded.model(input_ids=torch.tensor([[*request.prompt_ids, *ids[:-1]]])).logits[0, -1]
        wanted = torch.log_softmax(logits / request.temperature, 0)[list(candidates[row])]
        assert found[row] == pytest.approx(wanted.numpy(), abs=0.01)
    places = probe_places(ME, signed.digest, 4)
    assert replayed.probes.chosen_by(ME, signed.digest) == found.reshape(-1)[places].tobytes()
    (plain,) = replay_groups(run.scorer, [(signed.group, seen)], run_dtype="float32")
    assert plain.probes is None
    assert plain.behavior_logprobs == replayed.behavior_logprobs
    run.close()
