"""Slots, groups and scores: an assignment is a function of its slot, and a packed group passes inspection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.models.replay.group_replay import replay_groups
from p2prl.models.replay_statistics.noise import UNIT_ROUNDOFF
from p2prl.models.sampling import sample_all
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.protocol import limits
from p2prl.protocol.manifests import DTYPE_BYTES
from tests.unit.learner.small_run import SmallRun, identity

ME, OTHER = identity("volunteer"), identity("other")


@pytest.fixture
def world(tmp_path: Path) -> SmallRun:
    made = SmallRun(tmp_path, group_size=3)
    made.close()
    made.journal = type(made.journal)(tmp_path / "again.db")
    return made


def test_assignment_depends_on_every_part_of_its_slot(world: SmallRun) -> None:
    base = {"beacon": bytes(32), "peer": ME.public_key, "slot": 0}
    first = world.work.assign(**base)  # type: ignore[arg-type]
    assert world.work.assign(**base) == first  # type: ignore[arg-type]
    assert len({request.seed for request in first.requests}) == 3
    assert len({request.prompt_ids for request in first.requests}) == 1
    for change in ({"beacon": b"\1" * 32}, {"peer": OTHER.public_key}, {"slot": 1}):
        other = world.work.assign(**{**base, **change})  # type: ignore[arg-type]
        assert {r.seed for r in other.requests}.isdisjoint(r.seed for r in first.requests)


def test_oversized_prompt_is_refused(world: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextCodec, "encode", lambda self, text, frame, rendered: (1,) * (limits.MAX_PROMPT_TOKENS + 1))
    with pytest.raises(RemoteProtocolError, match="prompt of 8193 tokens"):
        world.work.assign(beacon=bytes(32), peer=ME.public_key, slot=0)


def test_packed_group_passes_inspection_and_replay(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    group = world.group(policy, ME, 5)
    inspection = world.work.inspect(group, peer=ME.public_key, beacon=policy.manifest.beacon)
    assert inspection.reason == ""
    rewards = world.work.rewards(inspection.assignment, inspection.token_ids)
    assert rewards == tuple(completion.reward for completion in group.completions)
    again = sample_all(world.sampler, inspection.assignment.requests)
    assert inspection.token_ids == tuple(generation.token_ids for generation in again)
    (replay,) = replay_groups(world.scorer, [(group, inspection)], run_dtype="float32")
    assert (replay.reason, replay.mismatched) == ("", 0)
    assert replay.tokens == sum(len(ids) for ids in inspection.token_ids)
    assert replay.worst_margin == 0.0
    world.close()


def test_only_finished_right_answers_score(world: SmallRun) -> None:
    assignment = world.work.assign(beacon=bytes(32), peer=ME.public_key, slot=0)
    total, values = int(assignment.prompt[0]), ""
    for operator, number in zip(assignment.prompt[1:-1:2], assignment.prompt[2:-1:2], strict=True):
        total = {"+": total + int(number), "-": total - int(number), "*": total * int(number)}[operator]
        values += str(total % 10)
    tokenizer = world.loaded.tokenizer
    ids = tokenizer.convert_tokens_to_ids([*values, "#", values[-1]])
    (stop,) = assignment.requests[0].stop_ids
    scores = world.work.successes(assignment, ([*ids, stop], ids, [*ids[:-1], stop], [stop]))
    assert scores[0] == 1.0
    assert max(scores[1:]) < 1.0


def test_every_dtype_has_a_roundoff() -> None:
    assert set(UNIT_ROUNDOFF) == set(DTYPE_BYTES)


def test_groups_replay_alike_alone_and_in_a_batch(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    pairs = []
    for slot in range(4):
        group = world.group(policy, ME, slot)
        pairs.append((group, world.work.inspect(group, peer=ME.public_key, beacon=policy.manifest.beacon)))
    together = replay_groups(world.scorer, pairs, run_dtype="float32")
    for pair, joint in zip(pairs, together, strict=True):
        (alone,) = replay_groups(world.scorer, [pair], run_dtype="float32")
        assert (alone.reason, alone.tokens, alone.mismatched) == (joint.reason, joint.tokens, joint.mismatched)
        for mine, theirs in zip(alone.behavior_logprobs, joint.behavior_logprobs, strict=True):
            assert np.allclose(mine, theirs, atol=1e-5)
    world.close()


def test_group_of_two_policies_is_not_packed(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    assignment = world.work.assign(beacon=policy.manifest.beacon, peer=ME.public_key, slot=0)
    sampled = sample_all(world.sampler, assignment.requests)
    mixed = [replace(sampled[0], spans=((0, 4), (1, 5))), *sampled[1:]]
    for generations in (mixed, [replace(g, spans=((0, i),)) for i, g in enumerate(sampled)]):
        with pytest.raises(LocalProtocolError, match="two policies"):
            world.work.pack(
                assignment, generations, version=5, policy=policy.digest, engine=world.sampler.engine_class, seconds=1.0
            )
    world.close()
