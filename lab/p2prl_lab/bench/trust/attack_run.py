"""A run to attack: a small model in one number type, its first version, and honest groups of its slots.

Slots, seeds, prompts, sampler and scorer are the product's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from p2prl.errors import require
from p2prl.learner.new_run_plan import RunPlan, run_manifest
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.groups.group_work import GroupWork, ReplayTools, SlotAssignment
from p2prl.models.run_files.export import export_run_files
from p2prl.models.sampler_port import Sampler
from p2prl.models.sampling import sample_all
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.weights.layout import TORCH_DTYPES, flatten, layout_of
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_time import START
from p2prl_lab.bench.trust.remembering_sampler import RememberingSampler

Entry = tuple[Identity, RolloutGroup]
"""A group, and who signs and delivers it."""

SHAPES = {8: (2, 4), 40: (4, 10), 512: (8, 64), 4096: (16, 256), 16_384: (16, 1024)}
"""Tokens of a group → its completions, and the tokens of each."""

CLASS_NOISE = {"float32": 1e-3, "bfloat16": 0.1}
"""Most noise of an honest engine in logits, by number type."""

_PROMPT_ROOM = 16
_LOGITS_SPREAD = 1.25
"""Factor of the tied embeddings, for logits with a deviation of 1.8: as uncertain as a policy in training, so that two
seeds never draw the same group."""

_TASK = "chain4"


def endless_model(context: int, seed: int) -> LoadedModel:
    """The small model of chain4 with random weights and a longer context, which hardly ever draws its end token.

    So all completions are as long as they may be. One direction of the hidden state is constant and belongs to the end
    token alone, whose logit is near −12 and whose probability is below 1e-5.
    """
    loaded = tiny_model(_TASK, seed=seed)
    config = copy.deepcopy(loaded.model.config)
    config.n_positions = context
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(seed)
        model = type(loaded.model)(config).eval()
        embeddings, last_norm = model.transformer.wte.weight, model.transformer.ln_f
        embeddings.mul_(_LOGITS_SPREAD)
        direction = torch.zeros(config.n_embd)
        direction[0] = 1.0
        embeddings[:, 0] = 0.0
        embeddings[config.eos_token_id] = -direction
        last_norm.bias[0] = 12.0
    return LoadedModel(model=model, tokenizer=loaded.tokenizer)


@dataclass(frozen=True, kw_only=True)
class RunSize:
    """What groups of a run look like."""

    dtype: str
    """Number type that every engine computes in."""
    tokens: int
    """Of a group."""
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        require("dtypes", self.dtype, self.dtype in CLASS_NOISE, f"one of {', '.join(CLASS_NOISE)}")
        require("tokens", self.tokens, self.tokens in SHAPES, f"one of {', '.join(map(str, SHAPES))}")


class AttackRun:
    """A run and its honest groups. Groups, models and policy depend on the size and the seed alone."""

    def __init__(self, size: RunSize) -> None:
        self.size = size
        completions, tokens = SHAPES[size.tokens]
        self.key = identity_of(f"trust learner {size.seed}")
        self.loaded = endless_model(tokens + _PROMPT_ROOM, size.seed)
        self.layout = layout_of(self.loaded.model, "float32")
        plan = RunPlan(
            name="trust",
            goal="be attacked",
            task=_TASK,
            model=None,
            group_size=completions,
            max_new_tokens=tokens,
            temperature=size.temperature,
            staleness_bound=128,
            publish_every=128,
            compute_dtype=size.dtype,
            seed=size.seed,
        )
        files = export_run_files(self.loaded)
        self.manifest = run_manifest(plan, self.layout, self.key.public_key, files, now=START)
        self.run = envelope_digest(seal(self.key, self.manifest, run=bytes(32), now=START))
        self.work = GroupWork(self.manifest, self.run, TextCodec(self.loaded.tokenizer, self.loaded.model))
        self.weights = bytes(flatten(self.loaded.model, self.layout))
        self.engine = self.engine_in(size.dtype)
        self.scorer = TransformersScorer(self.engine)
        self.sampler = RememberingSampler(TransformersSampler(self.engine))
        self._policy: bytes | None = None

    def engine_in(self, dtype: str) -> PolicyModel:
        """The first version's model, computing in a number type."""
        return PolicyModel(copy.deepcopy(self.loaded.model).to(TORCH_DTYPES[dtype]), self.layout)

    @cached_property
    def replaying(self) -> ReplayTools:
        """What all learners of this run replay with, one after the other."""
        return ReplayTools(TransformersScorer(self.engine_in(self.size.dtype)), self.work)

    @cached_property
    def reference(self) -> TransformersScorer:
        """The scorer that says what the seeded draws are, in float32."""
        return TransformersScorer(self.engine_in("float32"))

    def published(self, raw: bytes) -> None:
        """A learner has published its first version: the same one each time."""
        assert self._policy in (None, raw), "two learners of one run published different first versions"
        self._policy = raw

    @property
    def policy(self) -> tuple[PolicyManifest, Digest]:
        """The first version, and its digest. A learner must have published it."""
        assert self._policy is not None
        return body_of(open_envelope(self._policy, now=None), PolicyManifest), envelope_digest(self._policy)

    def assign(self, peer: Identity, slot: int) -> SlotAssignment:
        """The work of a slot under the first version."""
        policy, _ = self.policy
        return self.work.assign(beacon=policy.beacon, peer=peer.public_key, slot=slot)

    def sampled(self, slots: Iterable[tuple[Identity, int]], sampler: Sampler | None = None) -> list[Entry]:
        """Groups of slots as `sampler` samples them, the honest engine if there is none. The honest ones are kept."""
        places = list(slots)
        assignments = [self.assign(peer, slot) for peer, slot in places]
        requests = [request for assignment in assignments for request in assignment.requests]
        made = iter(sample_all(self.sampler if sampler is None else sampler, requests))
        policy, digest = self.policy
        entries = []
        for (peer, _), assignment in zip(places, assignments, strict=True):
            group = self.work.pack(
                assignment,
                [next(made) for _ in assignment.requests],
                version=policy.version,
                policy=digest,
                engine=self.engine.engine_class,
                seconds=1.0,
            )
            entries.append((peer, group))
        return entries

    def fresh_keys(self, count: int) -> list[Identity]:
        """Keys that nobody knows: each group is judged, because nobody is excluded for the groups before."""
        return [identity_of(f"trust {self.size.seed}/{number}") for number in range(count)]

    def honest(self, count: int) -> list[Entry]:
        """The honest group of the first slot of each of `count` keys."""
        return self.sampled((key, 0) for key in self.fresh_keys(count))
