"""Groups of an environment that a run brings: what a volunteer samples, its learner and validators compute again."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("wasmtime", reason="needs the extra agents")

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.rewards.run_reward import RunReward
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.small_models.tiny_models import shaped_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.turns import Episode
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import RunFile, RunManifest, Sampling, TaskShare, blob_of
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import EngineClass, RolloutGroup
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.tasks.environment import MAX_TURNS
from p2prl.tasks.task_spec import SmallModel
from tests.unit.tasks.wasm.written_modules import HELLO, environment, example, module

LOADED = shaped_model(SmallModel(symbols="0123456789*+#?-=:hello".replace("l", "", 1), context=1024))
CODEC = TextCodec(LOADED.tokenizer, LOADED.model)
(STOP,) = CODEC.stop_ids
BEACON, PEER, RUN = bytes(32), bytes([7]) * 32, bytes([9]) * 32
ENGINE = EngineClass("unit", "1", "float32", "cpu")


def manifest(name: str, *, most: int = 60) -> RunManifest:
    files = (RunFile(f"{name}.wasm", blob_of(b"\0asm", 4096)),)
    run = run_manifest_of(Identity(bytes(16)))
    return msgspec.structs.replace(run, files=files, tasks=(TaskShare(name, 1.0),), sampling=Sampling(1.0, most, 4))


def work(name: str, brought: Any = None, *, most: int = 60) -> GroupWork:
    return GroupWork(manifest(name, most=most), RUN, CODEC, environments={name: brought or example(name)})


def sampled(requests: tuple[GenerationRequest, ...], rng: random.Random) -> list[Generation]:
    """Completions of a policy that types at random, all at once, a turn of each after the other."""
    episodes = [
        (Episode(rules), list[int](), request.max_new_tokens) for request in requests if (rules := request.turns)
    ]
    open_ones = list(range(len(episodes)))
    while open_ones:
        number = rng.choice(open_ones)
        episode, ids, most = episodes[number]
        words = ["1", "2", "3", "32*4", "9-1", "8+5", "#7", ""]
        turn = [*CODEC.encode(rng.choice(words), rendered=True), STOP][: most - len(ids)]
        ids += turn
        message = episode.end_turn(turn) if turn[-1] == STOP else None
        ids += message or ()
        if message is None or len(ids) >= most:
            open_ones.remove(number)
    return [Generation(tuple(ids), (0.0,) * len(ids), ids[-1] == STOP) for _, ids, _ in episodes]


def group(of: GroupWork, slot: int, rng: random.Random) -> RolloutGroup:
    assignment = of.assign(beacon=BEACON, peer=PEER, slot=slot)
    generations = sampled(assignment.requests, rng)
    return of.pack(assignment, generations, version=0, policy=bytes(32), engine=ENGINE, seconds=1.0)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["sticks", "calculator"]), st.integers(0, 1000), st.integers(0, 10**6), st.integers(8, 60))
def test_a_validator_computes_what_a_volunteer_did(name: str, slot: int, game: int, most: int) -> None:
    packed = group(work(name, most=most), slot, random.Random(game))
    validator = work(name, most=most)
    inspected = validator.inspect(packed, peer=PEER, beacon=BEACON)
    assert inspected.reason == ""
    rewards = validator.rewards(inspected.assignment, inspected.token_ids)
    assert rewards == tuple(completion.reward for completion in packed.completions)


def test_a_forged_message_is_found() -> None:
    volunteer = work("calculator")
    packed = group(volunteer, 3, random.Random(5))
    for index, completion in enumerate(packed.completions):
        read = volunteer.inspect(packed, peer=PEER, beacon=BEACON)
        theirs = [at for at, ours in enumerate(read.sampled[index]) if not ours]
        if not theirs:
            continue
        tokens = bytearray(completion.tokens)
        tokens[4 * theirs[0]] = (tokens[4 * theirs[0]] + 1) % 10
        forged = list(packed.completions)
        forged[index] = msgspec.structs.replace(completion, tokens=bytes(tokens))
        altered = msgspec.structs.replace(packed, completions=tuple(forged))
        assert volunteer.inspect(altered, peer=PEER, beacon=BEACON).reason == RejectionReason.BAD_TOKENS
        return
    raise AssertionError("no completion had a message")


def test_an_episode_without_an_end_stops_after_the_most_turns() -> None:
    endless = work("calculator", environment(module(step=HELLO), "calculator"), most=900)
    assignment = endless.assign(beacon=BEACON, peer=PEER, slot=0)
    assert assignment.turns is not None
    hello = CODEC.encode("hello", rendered=True)
    ids = [STOP, *hello] * (MAX_TURNS - 1) + [STOP]
    read = assignment.turns.read(ids)
    assert read is not None
    assert (len(read.turns), read.finished) == (MAX_TURNS, False)
    assert assignment.turns.read([*ids, *hello, STOP]) is None
    assert endless.rewards(assignment, [ids]) == (1.0,)


def test_the_environments_are_those_of_the_manifest() -> None:
    with pytest.raises(LocalProtocolError, match="environments are not those"):
        GroupWork(manifest("sticks"), RUN, CODEC)
    with pytest.raises(ConfigError, match="nothing judges those of the environment sticks"):
        RunReward("success+0.2*process", ["sticks"], environments={"sticks": example("sticks")})
    with pytest.raises(ConfigError, match="those of sticks have several"):
        RunReward("success+orm@" + "0" * 32, ["sticks"], environments={"sticks": example("sticks")})
    assert RunReward("2*success", ["sticks"], environments={"sticks": example("sticks")}).of_success([0.5]) == (1.0,)
