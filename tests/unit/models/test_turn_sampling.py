"""Slots of several turns: sampled with noise that goes on across turns, replayed in one pass, judged on the policy's
tokens alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.evaluation.mean_reward import evaluate
from p2prl.models.evaluation.pass_evaluation import evaluate_prompts, evaluation_sets
from p2prl.models.replay.group_replay import Replay, replay_groups
from p2prl.models.replay_statistics.judge import MOST_MARGIN
from p2prl.models.sampler_port import Generation, GenerationRequest, StagedWeights, StepResult, Ticket, Weights
from p2prl.models.sampling import TurnSampling, sample_all
from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.models.turns import Episode
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import EngineClass, RolloutGroup
from p2prl.sim.shared_engine import SharedModel, SharedSampler
from p2prl.swarm.policies.catalog import PolicyVersion
from tests.unit.learner.small_run import SmallRun, identity, with_completion
from tests.unit.talking_task import MAX_NEW_TOKENS, install_talking_task

ME = identity("volunteer")
SLOTS = range(4)


class World:
    """A run of the talking environment, with a published policy."""

    def __init__(self, folder: Path, task: str) -> None:
        self.run = SmallRun(folder, group_size=4, task=task, model=task, max_new_tokens=MAX_NEW_TOKENS)
        self.policy: PolicyVersion = self.run.publish(0, step=0)

    def group(self, slot: int) -> RolloutGroup:
        return self.run.group(self.policy, ME, slot)

    def replayed(self, group: RolloutGroup) -> tuple[str, Replay | None]:
        """The reason against a group, and its replay if it came to that."""
        inspection = self.run.work.inspect(group, peer=ME.public_key, beacon=self.policy.manifest.beacon)
        if inspection.reason:
            return inspection.reason, None
        (replay,) = replay_groups(self.run.scorer, [(group, inspection)], run_dtype="float32")
        return replay.reason, replay


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, install_talking_task(tmp_path, monkeypatch))


@torch.no_grad()
def drawn_by_hand(world: World, request: GenerationRequest) -> tuple[list[int], list[bool], list[float]]:
    """One token at a time from complete logits, with the environment asked at every stop token."""
    turns, model = request.turns, world.run.loaded.model
    assert turns is not None
    episode, start = Episode(turns), 0
    ids: list[int] = []
    ours: list[bool] = []
    logprobs: list[float] = []
    while len(ids) < request.max_new_tokens:
        scaled = model(input_ids=torch.tensor([[*request.prompt_ids, *ids]])).logits[0, -1] / request.temperature
        noise = gumbel(torch.tensor([request.seed]), torch.tensor([[len(ids)]]), len(scaled))[0, 0]
        token = int((scaled + noise).argmax())
        ids, ours = [*ids, token], [*ours, True]
        logprobs.append(float(scaled.log_softmax(-1)[token]))
        if token in request.stop_ids:
            message = episode.end_turn(ids[start:])
            if message is None:
                break
            start = len(ids) + len(message)
            ids, ours = [*ids, *message], [*ours, *[False] * len(message)]
            logprobs += [0.0] * len(message)
    return ids, ours, logprobs


def test_noise_goes_on_across_turns(world: World) -> None:
    turns_seen = set()
    for slot in SLOTS:
        assignment = world.run.work.assign(beacon=world.policy.manifest.beacon, peer=ME.public_key, slot=slot)
        world.group(slot)  # loads the policy
        made = sample_all(world.run.sampler, assignment.requests)
        for request, generation in zip(assignment.requests, made, strict=True):
            ids, ours, logprobs = drawn_by_hand(world, request)
            assert list(generation.token_ids) == ids
            assert generation.logprobs == pytest.approx(logprobs, abs=1e-5)
            assert generation.finished == (ids[-1] in request.stop_ids)
            assert len(generation.spans) == 1
            assert assignment.turns is not None
            read = assignment.turns.read(ids)
            assert read is not None
            assert list(read.sampled) == ours
            assert generation.sampled_tokens == sum(ours)
            turns_seen.add(len(read.turns))
    assert max(turns_seen) >= 4


def test_samples_do_not_depend_on_the_decoder_or_its_rows(world: World) -> None:
    world.group(0)
    requests = [
        request
        for slot in SLOTS
        for request in world.run.work.assign(beacon=bytes(32), peer=bytes(32), slot=slot).requests
    ]
    together = sample_all(world.run.sampler, requests)
    policy = PolicyModel(world.run.loaded.model, world.run.layout)
    few = TransformersSampler(policy, most_rows=3)
    shared = SharedSampler(SharedModel(policy))
    shared.swap(shared.stage(world.run.published.weights(0).open(), 0))
    for sampler in (few, shared):
        again = sample_all(sampler, requests)
        assert [made.token_ids for made in again] == [made.token_ids for made in together]
        for one, other in zip(again, together, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_an_honest_group_replays_and_counts_the_policys_tokens(world: World) -> None:
    for slot in SLOTS:
        group = world.group(slot)
        inspection = world.run.work.inspect(group, peer=ME.public_key, beacon=world.policy.manifest.beacon)
        reason, replay = world.replayed(group)
        assert reason == ""
        assert replay is not None
        assert (replay.mismatched, replay.worst_margin) == (0, 0.0)
        assert replay.tokens == sum(map(sum, inspection.sampled)) < sum(map(len, inspection.token_ids))
        claimed = [np.frombuffer(each.logprobs, dtype="<f2") for each in group.completions]
        for own, mask, claims in zip(replay.behavior_logprobs, inspection.sampled, claimed, strict=True):
            where = np.asarray(mask)
            assert np.isnan(own).tolist() == (~where).tolist()
            assert np.allclose(np.asarray(own)[where], claims[where], atol=5e-3)
        rewards = world.run.work.rewards(inspection.assignment, inspection.token_ids)
        assert rewards == tuple(completion.reward for completion in group.completions)
        (outcome,) = world.run.check(world.run.sealed(group, ME))
        assert outcome.state is ReceiptState.VERIFIED


def packed(ids: list[int]) -> bytes:
    return np.asarray(ids, dtype="<u4").tobytes()


def test_every_single_edit_is_refused(world: World) -> None:
    """Of the environment before a model is loaded, of the policy by the replay at the latest."""
    group = world.group(1)
    inspection = world.run.work.inspect(group, peer=ME.public_key, beacon=world.policy.manifest.beacon)
    rows = zip(inspection.token_ids, inspection.sampled, strict=True)
    ids, ours = max(rows, key=lambda row: row[1].count(False))
    index = inspection.token_ids.index(ids)
    assert not all(ours)
    (stop,) = inspection.assignment.requests[0].stop_ids
    seen = set()
    for at, mine in enumerate(ours):
        for other in (0, 1, 2, stop):
            if other == ids[at]:
                continue
            edited = [*ids[:at], other, *ids[at + 1 :]]
            finished = edited[-1] == stop
            reason, replay = world.replayed(with_completion(group, index, tokens=packed(edited), finished=finished))
            if not mine:
                assert reason == RejectionReason.BAD_TOKENS
            elif reason == RejectionReason.ENGINE_MISMATCH:
                # Nearly the draw: it earns nothing, and is a fault only beyond what the noisiest class explains.
                assert replay is not None
                assert 0.0 < replay.worst_margin <= MOST_MARGIN
            else:
                assert reason in (RejectionReason.BAD_TOKENS, RejectionReason.SEED_MISMATCH)
            seen.add(reason)
    assert {RejectionReason.BAD_TOKENS, RejectionReason.SEED_MISMATCH} <= seen


def test_dropped_turns_and_false_claims_are_refused(world: World) -> None:
    group = world.group(1)
    inspection = world.run.work.inspect(group, peer=ME.public_key, beacon=world.policy.manifest.beacon)
    rows = zip(inspection.token_ids, inspection.sampled, strict=True)
    ids, ours = max(rows, key=lambda row: row[1].count(False))
    index = inspection.token_ids.index(ids)
    logprobs = np.frombuffer(group.completions[index].logprobs, dtype="<f2")
    ends = [i + 1 for i in range(len(ids) - 1) if ours[i] and not ours[i + 1]]
    assert ends
    for end in ends:  # stops after a turn
        early = with_completion(
            group, index, tokens=packed(list(ids[:end])), logprobs=logprobs[:end].tobytes(), finished=True
        )
        assert world.replayed(early)[0] == RejectionReason.BAD_TOKENS
    start = next(i for i in range(ends[0], len(ids)) if ours[i])
    dropped = with_completion(group, index, tokens=packed(list(ids[start:])), logprobs=logprobs[start:].tobytes())
    assert world.replayed(dropped)[0] in (RejectionReason.BAD_TOKENS, RejectionReason.SEED_MISMATCH)
    claims = logprobs.copy()
    claims[ends[0]] = -0.5
    assert world.replayed(with_completion(group, index, logprobs=claims.tobytes()))[0] == RejectionReason.BAD_TOKENS
    claims = np.where(np.asarray(ours), logprobs - np.float16(4), logprobs).astype("<f2")
    assert (
        world.replayed(with_completion(group, index, logprobs=claims.tobytes()))[0] == RejectionReason.LOGPROB_MISMATCH
    )


def test_a_group_of_another_seed_is_refused(world: World) -> None:
    """Honest turns, but of noise that begins anew with each turn."""
    group = world.group(1)
    assignment = world.run.work.assign(beacon=world.policy.manifest.beacon, peer=ME.public_key, slot=1)

    class Restarting(TransformersSampler):
        def submit(self, requests: object) -> list[Ticket]:
            return super().submit([replace(request, first_position=0) for request in requests])  # type: ignore[attr-defined]

    restarting = Restarting(PolicyModel(world.run.loaded.model, world.run.layout))
    made = sample_all(restarting, assignment.requests)
    forged = world.run.work.pack(
        assignment, made, version=0, policy=world.policy.digest, engine=group.engine, seconds=1.0
    )
    assert world.replayed(forged)[0] == RejectionReason.SEED_MISMATCH


def test_the_scorer_counts_positions_from_the_first(world: World) -> None:
    """A continued request replays like the same tokens of a whole one."""
    world.group(0)
    request = GenerationRequest(prompt_ids=(1, 2, 3), seed=77, max_new_tokens=12, temperature=0.8, stop_ids=frozenset())
    (whole,) = sample_all(world.run.sampler, [request])
    rest = replace(request, prompt_ids=(1, 2, 3, *whole.token_ids[:5]), max_new_tokens=7, first_position=5)
    (made,) = sample_all(world.run.sampler, [rest])
    assert made.token_ids == whole.token_ids[5:]
    scorer = TransformersScorer(PolicyModel(world.run.loaded.model, world.run.layout))
    (scored,) = scorer.replay([rest], [made.token_ids])
    assert max(scored.margins) == 0.0
    (restarted,) = scorer.replay([replace(rest, first_position=0)], [made.token_ids])
    assert max(restarted.margins) > 0.0


class ScriptedSampler:
    """Ends every request in one step, after its first token, and keeps what it was asked."""

    engine_class = EngineClass("scripted", "1", "float32", "cpu")

    def __init__(self, stop: int, version: int) -> None:
        self.stop, self.version = stop, version
        self.asked: list[GenerationRequest] = []
        self.waiting: list[tuple[Ticket, GenerationRequest]] = []

    @property
    def in_flight(self) -> int:
        return len(self.waiting)

    @property
    def room(self) -> int:
        return 1

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        raise NotImplementedError

    def swap(self, staged: StagedWeights) -> None:
        raise NotImplementedError

    def submit(self, requests: list[GenerationRequest]) -> list[Ticket]:
        tickets = list(range(len(self.asked), len(self.asked) + len(requests)))
        self.asked += requests
        self.waiting += zip(tickets, requests, strict=True)
        return tickets

    def step(self) -> StepResult:
        waiting, self.waiting = self.waiting, []
        spans = ((0, self.version),)
        return StepResult(len(waiting), tuple((t, Generation((self.stop,), (-1.0,), True, spans)) for t, _ in waiting))

    def cancel(self) -> None:
        self.waiting = []

    def sleep(self) -> None:
        self.cancel()


def test_samplers_see_plain_requests_that_go_on(world: World) -> None:
    """Whatever the engine: it gets no turns, and each request covers exactly what is left of the completion."""
    assignment = world.run.work.assign(beacon=bytes(32), peer=bytes(32), slot=0)
    (stop,) = assignment.requests[0].stop_ids
    sampler = ScriptedSampler(stop, version=3)
    turns = TurnSampling()
    plain = replace(assignment.requests[0], turns=None)
    tickets = turns.submit(sampler, [*assignment.requests[:2], plain])  # type: ignore[arg-type]
    assert turns.step(sampler).ended[0][0] == tickets[2]  # type: ignore[arg-type]
    ended = {}
    sampler.version = 4
    while sampler.in_flight:
        result = turns.step(sampler)  # type: ignore[arg-type]
        ended.update(dict(result.ended))
    assert set(ended) == set(tickets[:2])
    whole = ended[tickets[0]]
    assert whole.finished
    assert whole.spans == ((0, 3), (2, 4)), "messages belong to the stretch before them"
    first = assignment.requests[0]
    for asked in sampler.asked:
        assert asked.turns is None
        so_far = asked.prompt_ids[len(first.prompt_ids) :]
        assert asked.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
        assert so_far == whole.token_ids[: len(so_far)]
        assert asked.first_position == len(so_far) == first.max_new_tokens - asked.max_new_tokens


def test_evaluation_plays_whole_episodes(world: World) -> None:
    world.group(0)
    sampled = evaluate(world.run.sampler, world.run.work, prompts=24, seed=5)
    assert sampled == evaluate(world.run.sampler, world.run.work, prompts=24, seed=5)
    assert 1.0 <= sampled.tokens_mean <= MAX_NEW_TOKENS
    assert evaluate(world.run.sampler, world.run.work, prompts=24, seed=5, greedy=True) != sampled


def test_episodes_that_open_alike_are_evaluated_apart(world: World) -> None:
    """Two openings for all seeds, and yet as many prompts as were asked for."""
    world.group(0)
    (chosen,) = evaluation_sets(world.run.work, world.run.manifest, world.run.run, prompts=12, samples=2)
    assert len({prompt.assignment.prompt_ids for prompt in chosen.prompts}) == 2
    seeds = [prompt.assignment.turns.seed for prompt in chosen.prompts if prompt.assignment.turns]
    assert len(set(seeds)) == 12
    outcomes = evaluate_prompts(world.run.sampler, world.run.work, chosen.prompts)
    for prompt, outcome in zip(chosen.prompts, outcomes, strict=True):
        (greedy, *sampled) = sample_all(world.run.sampler, prompt.requests)
        assert outcome.greedy.tokens == greedy.sampled_tokens
        assert [each.score for each in outcome.samples] == list(
            world.run.work.successes(prompt.assignment, [made.token_ids for made in sampled])
        )
