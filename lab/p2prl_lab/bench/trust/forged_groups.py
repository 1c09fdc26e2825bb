"""Groups that a cheat forges, from honest ones and from cheating samplers: every way to be paid for work not done.

Each forgery makes groups of fresh keys, except where several groups of one key are the attack. Most change the honest
group of their slot, so that nothing but the forgery is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
from msgspec.structs import replace

from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.protocol.identity import Identity
from p2prl.protocol.rollout_group import Completion, RolloutGroup
from p2prl.sim.dishonest_samplers import CHEATS, WEIGHT_CHEATS, Cheat, DishonestSampler, repeating
from p2prl.sim.machines import identity_of
from p2prl_lab.bench.trust.attack_run import AttackRun, Entry
from p2prl_lab.bench.trust.selection_rules import SELECTIONS, Sampled

INVENTED_NATS = 1.0
"""How far an invented token lies below the seeded draw, and a little more: the least that must never be paid."""

_SELECTION = SELECTIONS["highest of 8"]

Forge = Callable[[AttackRun, int], Sequence[Entry]]
"""Groups of an attack, as many as asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """A way to cheat, and what it takes to try it."""

    forge: Forge
    samples: int = 0
    """Times it samples each group beyond the honest one: sampling is what takes the time."""
    most_tokens: int = 16_384
    """Largest groups that it is tried on."""
    least_groups: int = 0
    """Groups that it takes to show what the attack gains."""
    wait_s: float = 0.0
    """Time between two groups; all at once for 0."""


# --- by the honest engine's sampler, with a cheat around it ---------------------------------------------------------


def _by_cheat(cheat: Cheat, run: AttackRun, count: int) -> Sequence[Entry]:
    """Groups of a cheating sampler that shares the honest engine."""
    return run.sampled(((key, 0) for key in run.fresh_keys(count)), DishonestSampler(run.sampler, cheat))


def _repeated(run: AttackRun, count: int) -> Sequence[Entry]:
    """The first completion for every slot."""
    return run.sampled(((key, 0) for key in run.fresh_keys(count)), repeating(run.sampler))


def _by_weights(cheat: Cheat, run: AttackRun, count: int) -> Sequence[Entry]:
    """Groups of an engine with other weights."""
    sampler = DishonestSampler(TransformersSampler(run.engine_in(run.size.dtype)), cheat)
    sampler.swap(sampler.stage(run.weights, 0))
    return run.sampled(((key, 0) for key in run.fresh_keys(count)), sampler)


def _laundered(cheat: Cheat, run: AttackRun, count: int) -> Sequence[Entry]:
    """Groups of an engine with other weights, and the log-probs that the declared policy gives them."""
    return [(key, _with_true_logprobs(run, key, group)) for key, group in _by_weights(cheat, run, count)]


def _with_true_logprobs(run: AttackRun, key: Identity, group: RolloutGroup) -> RolloutGroup:
    scored = run.scorer.replay(run.assign(key, group.slot).requests, [_ids(each) for each in group.completions])
    completions = [
        replace(each, logprobs=_logprob_bytes(found.logprobs))
        for each, found in zip(group.completions, scored, strict=True)
    ]
    return replace(group, completions=tuple(completions))


# --- by tokens that the seed did not draw ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LastToken:
    """A token that could stand last in a completion."""

    completion: int
    token: int
    margin: float
    """Nats its noisy logit lies below that of the seeded draw."""
    logprob: float


def _last_tokens(run: AttackRun, key: Identity, group: RolloutGroup) -> list[_LastToken]:
    """All tokens but the seeded draw, at the end of each completion that reached the limit."""
    requests = run.assign(key, group.slot).requests
    numbers = [number for number, each in enumerate(group.completions) if not each.finished]
    vocabulary = list(range(run.engine.vocabulary))
    ids = [_ids(group.completions[number]) for number in numbers]
    asked = [requests[number] for number in numbers]
    scored = run.scorer.replay(asked, ids, [vocabulary] * len(ids))
    found = []
    for number, request, tokens, each in zip(numbers, asked, ids, scored, strict=True):
        noise = gumbel(torch.tensor([request.seed]), torch.tensor([[len(tokens) - 1]]), len(vocabulary))[0, 0]
        noisy = torch.tensor(each.probe_logprobs) + noise
        margins = (noisy.max() - noisy).tolist()
        found += [
            _LastToken(number, token, margins[token], each.probe_logprobs[token])
            for token in vocabulary
            if token not in request.stop_ids and margins[token] > 0.0
        ]
    return found


def _with_last(group: RolloutGroup, edits: Iterable[_LastToken]) -> RolloutGroup:
    """The group with the last tokens of some completions replaced, and their true log-probs."""
    completions = list(group.completions)
    for edit in edits:
        completion = completions[edit.completion]
        logprobs = np.frombuffer(completion.logprobs, dtype="<f2").copy()
        logprobs[-1] = edit.logprob
        tokens = np.frombuffer(completion.tokens, dtype="<u4").copy()
        tokens[-1] = edit.token
        completions[edit.completion] = replace(completion, tokens=tokens.tobytes(), logprobs=logprobs.tobytes())
    return replace(group, completions=tuple(completions))


def _invented(run: AttackRun, count: int) -> Sequence[Entry]:
    """One token: of all that lie more than `INVENTED_NATS` below the draw the one that shows least."""
    entries = []
    for key, group in run.honest(count):
        far = [each for each in _last_tokens(run, key, group) if each.margin > INVENTED_NATS]
        if far:
            entries.append((key, _with_last(group, [min(far, key=lambda each: each.margin)])))
    return entries


def _second_best(run: AttackRun, count: int) -> Sequence[Entry]:
    """The second best token at the end of every completion: many small edits."""
    entries = []
    for key, group in run.honest(count):
        best: dict[int, _LastToken] = {}
        for each in _last_tokens(run, key, group):
            if each.completion not in best or each.margin < best[each.completion].margin:
                best[each.completion] = each
        entries.append((key, _with_last(group, best.values())))
    return entries


# --- by other people's work, or the same twice ----------------------------------------------------------------------


def _resealed(run: AttackRun, count: int) -> Sequence[Entry]:
    """Another volunteer's group, signed with one's own key."""
    thieves = [identity_of(f"thief {number}") for number in range(count)]
    return [(thief, group) for thief, (_, group) in zip(thieves, run.honest(count), strict=True)]


def _copied(run: AttackRun, count: int) -> Sequence[Entry]:
    """Another volunteer's completions under one's own prompt."""
    entries = []
    for number, (_, group) in enumerate(run.honest(count)):
        thief = identity_of(f"thief {number}")
        prompt = np.asarray(run.assign(thief, 0).prompt_ids, dtype="<u4").tobytes()
        entries.append((thief, replace(group, prompt=prompt)))
    return entries


def _old_work(run: AttackRun, count: int) -> Sequence[Entry]:
    """One's group again, in the next slot."""
    return [
        (key, replace(group, slot=1, prompt=np.asarray(run.assign(key, 1).prompt_ids, dtype="<u4").tobytes()))
        for key, group in run.honest(count)
    ]


def _duplicates(run: AttackRun, count: int) -> Sequence[Entry]:
    """Each honest group twice, in envelopes that differ: the first is honest work."""
    return [
        entry
        for key, group in run.honest(-(-count // 2))
        for entry in ((key, group), (key, replace(group, seconds=group.seconds + 1.0)))
    ]


# --- by choosing ----------------------------------------------------------------------------------------------------


def _other_prompt(run: AttackRun, count: int) -> Sequence[Entry]:
    """The prompt and the work of a slot that is one's own, but not the next."""
    return [(key, replace(group, slot=0)) for key, group in run.sampled((key, 1) for key in run.fresh_keys(count))]


def _withheld_members(run: AttackRun, count: int) -> Sequence[Entry]:
    """A completion left out."""
    return [(key, replace(group, completions=group.completions[:-1])) for key, group in run.honest(count)]


def _withheld_slots(run: AttackRun, count: int) -> Sequence[Entry]:
    """One key's best of each eight slots; the rewards are the product's, with ties for the earlier slot."""
    key, size = identity_of(f"chooser {run.size.seed}"), _SELECTION.stretch
    groups = {group.slot: (key, group) for _, group in run.sampled((key, slot) for slot in range(size * count))}
    chosen: list[Entry] = []
    for first in range(0, size * count, size):
        offered = [
            Sampled(slot, float(np.mean([each.reward for each in groups[slot][1].completions])), 0.0)
            for slot in range(first, first + size)
        ]
        chosen += [groups[kept.slot] for kept in _SELECTION.keep(offered)]
    return chosen


# --- by claims ------------------------------------------------------------------------------------------------------


def _forged_rewards(run: AttackRun, count: int) -> Sequence[Entry]:
    """Honest work that claims every answer is right: nobody reads the claim."""
    return [
        (key, replace(group, completions=tuple(replace(each, reward=1.0) for each in group.completions)))
        for key, group in run.honest(count)
    ]


def _unknown_policy(run: AttackRun, count: int) -> Sequence[Entry]:
    """Honest work under a policy that was never published."""
    return [(key, replace(group, policy=bytes(32))) for key, group in run.honest(count)]


def _wider_class(run: AttackRun, count: int) -> Sequence[Entry]:
    """One invented token, in an engine class of one's own invention that claims the coarsest number type."""
    engine = replace(run.engine.engine_class, engine="noisy", version="1", dtype="bfloat16", device="a cheat's")
    return [(key, replace(group, engine=engine)) for key, group in _invented(run, count)]


def _ids(completion: Completion) -> tuple[int, ...]:
    return tuple(np.frombuffer(completion.tokens, dtype="<u4").tolist())


def _logprob_bytes(logprobs: Sequence[float]) -> bytes:
    return np.asarray(logprobs, dtype="<f2").tobytes()


_SAMPLED_AGAIN = {"greedy": 1, "temperature x 1.1": 1, "temperature x 1.5": 1, "other seeds": 1, "best of 4": 4}
"""Cheats that need completions nobody else has sampled."""

ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {"honest": Attack(forge=AttackRun.honest)}
    | {
        name: Attack(forge=partial(_by_cheat, cheat), samples=_SAMPLED_AGAIN.get(name, 0))
        for name, cheat in CHEATS.items()
        if not cheat.keeps_first  # of one version, it is honest
    }
    | {name: Attack(forge=partial(_by_weights, cheat), samples=1) for name, cheat in WEIGHT_CHEATS.items()}
    | {
        "int4 weights with true log-probs": Attack(forge=partial(_laundered, WEIGHT_CHEATS["int4 weights"]), samples=1),
        "repeat old work": Attack(forge=_repeated),
        "invented token": Attack(forge=_invented),
        "invented token in a wider class": Attack(forge=_wider_class),
        "second best at every end": Attack(forge=_second_best),
        "re-seal another's group": Attack(forge=_resealed),
        "copy another's completions": Attack(forge=_copied),
        "old work in the next slot": Attack(forge=_old_work, most_tokens=4096),
        "duplicates": Attack(forge=_duplicates),
        "other prompt": Attack(forge=_other_prompt, samples=1, most_tokens=512),
        "withhold a completion": Attack(forge=_withheld_members),
        "withhold 7 of 8 slots": Attack(forge=_withheld_slots, most_tokens=8, least_groups=96, wait_s=120.0),
        "forge rewards": Attack(forge=_forged_rewards),
        "unknown policy": Attack(forge=_unknown_policy),
    }
)
"""Name → attack. "honest" is there to compare with."""
