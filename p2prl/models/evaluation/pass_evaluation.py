"""Evaluation of a policy on prompts it is never trained on: one greedy completion each, and k samples.

The prompts of a data task are its held-out rows; those of a procedural task come from the slots of a key that no peer
can have. Both are the same at every version of a run, so that two evaluations differ by the policy alone. Nothing that
is sampled here reaches the journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from p2prl.errors import RemoteProtocolError, require
from p2prl.models.groups.group_work import GroupWork, SlotAssignment
from p2prl.models.sampler_port import Generation, GenerationRequest, Sampler
from p2prl.models.sampling import GREEDY_TEMPERATURE, sample_all
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.manifests import RunManifest, TaskShare
from p2prl.protocol.work_slots import RowOrderKey, SlotKey, row_of, slot_work
from p2prl.tasks.evaluation_report import CompletionOutcome, PromptOutcome, Split, pass_threshold

MAX_SAMPLES = 1024
"""Samples of one prompt: the k of published pass@k curves."""

_SLOTS_PER_PROMPT = 64
"""Slots looked at for each prompt that is wanted: a task with a small share of the mix comes up rarely, and a task with
few different prompts repeats them."""


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    """One prompt, ready to sample."""

    assignment: SlotAssignment
    requests: tuple[GenerationRequest, ...]
    """The greedy one, then the samples."""


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """The prompts of one task."""

    task: str
    split: Split
    pass_above: float
    """A completion whose score is above this passes."""
    prompts: tuple[EvaluationPrompt, ...]


def evaluation_sets(
    work: GroupWork,
    manifest: RunManifest,
    run: bytes,
    *,
    prompts: int,
    samples: int,
    splits: Sequence[Split] = ("held-out", "fresh"),
    pass_above: float | None = None,
    seed: int = 0,
) -> tuple[EvaluationSet, ...]:
    """Up to `prompts` different prompts of each task of the run that has any to evaluate on, in the order of the mix.

    Prompts that do not fit the run are left out, as volunteers leave them out. `pass_above` replaces each task's own
    threshold.
    """
    require("prompts", prompts, prompts >= 1, "1 or more")
    require("samples", samples, 0 <= samples <= MAX_SAMPLES, f"within 0..{MAX_SAMPLES}")
    nobody = digest("p2prl/evaluation-prompts/v1", seed.to_bytes(8, "little", signed=True))
    data = {each.task: each for each in manifest.data_sets}
    fresh = [share.task for share in manifest.tasks if share.task not in data] if "fresh" in splits else []
    chosen: dict[str, tuple[EvaluationPrompt, ...]] = {}
    if fresh:
        chosen |= _fresh_prompts(work, manifest, run, nobody, fresh, prompts=prompts, samples=samples)
    for task in data if "held-out" in splits else ():
        rows = work.held_out_rows(task)
        chosen[task] = tuple(_held_out(work, RowOrderKey(run, nobody, task), rows, prompts=prompts, samples=samples))
    sets = []
    for task in (share.task for share in manifest.tasks):
        if chosen.get(task):
            threshold = pass_threshold(data[task].scoring if task in data else None)
            split: Split = "held-out" if task in data else "fresh"
            sets.append(EvaluationSet(task, split, threshold if pass_above is None else pass_above, chosen[task]))
    return tuple(sets)


def evaluate_prompts(
    sampler: Sampler,
    work: GroupWork,
    prompts: Sequence[EvaluationPrompt],
    *,
    should_stop: Callable[[], bool] | None = None,
    with_texts: bool = False,
) -> list[PromptOutcome]:
    """Sample and score `prompts` under the sampler's weights. `GenerationStopped` when `should_stop` says so.

    `with_texts` keeps the text of every completion, and not of the greedy one alone.
    """
    requests = [request for prompt in prompts for request in prompt.requests]
    generations = iter(sample_all(sampler, requests, should_stop=should_stop))
    outcomes = []
    for prompt in prompts:
        made = [next(generations) for _ in prompt.requests]
        scores = work.successes(prompt.assignment, [each.token_ids for each in made])
        text, answer = work.texts(prompt.assignment, made[0].token_ids)
        texts = [work.texts(prompt.assignment, each.token_ids)[1] if with_texts else "" for each in made]
        greedy, *sampled = (_outcome(*each) for each in zip(scores, made, texts, strict=True))
        outcomes.append(PromptOutcome(replace(greedy, logprob_sum=0.0), tuple(sampled), text, answer))
    return outcomes


def _outcome(score: float, made: Generation, text: str) -> CompletionOutcome:
    return CompletionOutcome(
        score=score, tokens=made.sampled_tokens, finished=made.finished, logprob_sum=sum(made.logprobs), text=text
    )


def _fresh_prompts(
    work: GroupWork,
    manifest: RunManifest,
    run: bytes,
    nobody: Digest,
    tasks: Sequence[str],
    *,
    prompts: int,
    samples: int,
) -> Mapping[str, tuple[EvaluationPrompt, ...]]:
    """Different prompts of procedural tasks, from nobody's slots in their order."""
    chosen: dict[str, dict[tuple[tuple[int, ...], int | None], EvaluationPrompt]] = {task: {} for task in tasks}
    for slot in range(_SLOTS_PER_PROMPT * prompts * len(manifest.tasks)):
        if all(len(of_task) >= prompts for of_task in chosen.values()):
            break
        key = SlotKey(run=run, beacon=nobody, peer=nobody, slot=slot)
        planned = slot_work(key, manifest.tasks, samples + 1)
        of_task = chosen.get(planned.task)
        if of_task is None or len(of_task) >= prompts:
            continue
        with contextlib.suppress(RemoteProtocolError):  # too long for the run: no volunteer samples it either
            assignment = work.assign(beacon=nobody, peer=nobody, slot=slot)
            # Episodes that open alike differ by their seed.
            name = assignment.prompt_ids, assignment.turns.seed if assignment.turns else None
            of_task.setdefault(name, _prompt(assignment, planned.sample_seeds))
    return {task: tuple(of_task.values()) for task, of_task in chosen.items()}


def _held_out(
    work: GroupWork, key: RowOrderKey, rows: int, *, prompts: int, samples: int
) -> Iterator[EvaluationPrompt]:
    """Held-out rows of a data task, in an order of nobody's own, so that fewer than all are a fair choice."""
    made = 0
    for number in range(rows):
        if made >= prompts:
            return
        row = row_of(key, number, rows)
        slot = SlotKey(run=key.run, beacon=key.peer, peer=key.peer, slot=row)
        seeds = slot_work(slot, [TaskShare(key.task, 1.0)], samples + 1).sample_seeds
        with contextlib.suppress(RemoteProtocolError):
            yield _prompt(work.assign_row(key.task, row, seeds=seeds), seeds)
            made += 1


def _prompt(assignment: SlotAssignment, seeds: Sequence[int]) -> EvaluationPrompt:
    first = assignment.requests[0]
    greedy, *sampled = (replace(first, seed=seed) for seed in seeds)
    return EvaluationPrompt(assignment, (replace(greedy, temperature=GREEDY_TEMPERATURE), *sampled))
