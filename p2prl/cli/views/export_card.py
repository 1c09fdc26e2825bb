"""Model card of an exported checkpoint: README.md with the metadata that the Hugging Face hub reads. Pure.

Goal, license and task names were chosen by the person who made the run. They appear only as inline code, in which
neither Markdown nor HTML nor links have a meaning, and in the metadata only where they match a fixed pattern. They are
never in a table: a backslash before a pipe ends a cell, and with it the code, in some readers and not in others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from p2prl.config.prompt_record import PromptRecord
from p2prl.plain_text import cleaned, counted
from p2prl.protocol.identity import peer_id_of
from p2prl.protocol.manifests import DataSet, RunManifest
from p2prl.protocol.reward_text import reward_model_of
from p2prl.scoreboard.documents.api_schema import (
    ContributorDocument,
    EvaluatedTaskDocument,
    EvaluationDocument,
    RateDocument,
    Totals,
)
from p2prl.scoreboard.documents.api_views import CREDIT_DEFINITION
from p2prl.time_text import time_text

MAX_ROWS = 100
"""Rows of the contributors table: the hub shows the card on one page. `p2prl ledger verify` lists everyone."""

_ROOT_CHARS = 16
"""Hex digits of a receipts' root in the card: 64 bits, which nobody makes another list of receipts for by chance."""

LEDGER_FILE = "run.ledger"
"""The run's ledger beside the weights, as `p2prl ledger dump` writes it."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)

_LICENSES = frozenset(
    {
        "afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "bsl-1.0",
        "cc-by-4.0", "cc-by-nc-4.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-4.0", "cc-by-sa-4.0", "cc0-1.0", "ecl-2.0",
        "epl-2.0", "eupl-1.2", "gemma", "gpl-2.0", "gpl-3.0", "isc", "lgpl-2.1", "lgpl-3.0", "llama2", "llama3",
        "llama3.1", "llama3.2", "llama3.3", "llama4", "mit", "mpl-2.0", "openrail", "osl-3.0", "unlicense", "wtfpl",
    }
)  # fmt: skip
"""License names that the hub knows, of those a model's weights have. Any other is shown as `other`."""


@dataclass(frozen=True, slots=True)
class RewardChange:
    """Mean rewards of the groups trained on in the first and in the last updates."""

    first: float
    last: float
    updates: int
    """Updates in each of the two means."""
    began_ms: int
    ended_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """Facts of an export. It has this many fields because each is a line of the card."""

    manifest: RunManifest
    run_id: str
    step: int
    versions: int
    """Versions published up to this step."""
    version: int | None
    """The published version whose weights these are, bit for bit."""
    weights_digest: str
    dtype: str
    has_chat_template: bool
    base_is_local: bool
    """Whether the base model's name is a directory of the machine that made the run."""
    loss: Mapping[str, object]
    """Settings of the loss, without those that have their default."""
    prompts: PromptRecord | None
    """How prompts were rendered; None for a run made before that was kept."""
    preferences: str
    """What pairs of preferences were trained on too; empty for none."""
    reward: RewardChange | None
    evaluation: EvaluationDocument | None
    """The newest evaluation of a version up to this step."""
    totals: Totals
    people: list[ContributorDocument]
    ledger_height: int
    ledger_root: str
    ledger_incident: str | None
    """Proof that the ledger cannot be trusted; None while there is none."""
    source: str
    """Hub id or directory for the examples."""
    program: str
    """Version of p2prl that exported."""


def model_card(facts: CardFacts) -> str:
    """The text of README.md."""
    parts = (
        _metadata(facts),
        _introduction(facts),
        _usage(facts),
        "## The run\n\n" + _list(_run_rows(facts)),
        "## Prompts and scores\n\n" + _list(_prompt_rows(facts)),
        _evaluation(facts),
        _reward(facts),
        _contributors(facts),
        _verification(facts),
    )
    return "\n\n".join(parts) + "\n"


def code(text: str) -> str:
    """Text as inline code on one line, in which nothing is markup."""
    plain = cleaned(text).strip() or "–"
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    pad = " " if "`" in plain else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def license_metadata(text: str) -> dict[str, str]:
    """The hub's name of a license, or `other` with a name made of plain characters."""
    name = text.strip().lower()
    if name in _LICENSES:
        return {"license": name}
    plain = re.sub(r"[^a-z0-9.]+", "-", name).strip("-.")[:64]
    return {"license": "other", "license_name": plain or "unnamed"}


def _metadata(facts: CardFacts) -> str:
    """The YAML block. A JSON string is a YAML string, so each value is escaped as JSON."""
    base = facts.manifest.base_model
    values: dict[str, object] = license_metadata(facts.manifest.licence) | {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["p2prl", "reinforcement-learning", "text-generation"],
    }
    if _HUB_ID.fullmatch(base) and not facts.base_is_local:
        values |= {"base_model": base, "base_model_relation": "finetune"}
    return "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()) + "---"


def _introduction(facts: CardFacts) -> str:
    people = facts.totals.contributors
    which = (
        f"of policy version {facts.version} in {code(facts.dtype)}, bit for bit as the learner published them"
        if facts.version is not None
        else f"of the learner's checkpoint in {code(facts.dtype)}, not those of a published version"
    )
    return (
        f"# {code(facts.manifest.name)}\n\n"
        f"A policy after {facts.step:,} updates of reinforcement learning in a p2prl run. Volunteers sampled the "
        f"rollouts on their own machines ({counted(people, 'contributor')}), and one learner "
        f"verified them and trained on them.\n\n"
        f"Goal: {code(facts.manifest.goal)}\n\n"
        f"These are the weights {which}."
    )


def _usage(facts: CardFacts) -> str:
    sampling = facts.manifest.sampling
    return f"""## Use it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

source = {json.dumps(facts.source)}  # or the directory of these files
tokenizer = AutoTokenizer.from_pretrained(source)
model = AutoModelForCausalLM.from_pretrained(source)
```

vLLM serves the same directory: `vllm serve DIRECTORY`.

The run sampled at temperature {sampling.temperature:g} with at most {sampling.max_new_tokens:,} new tokens, without \
top-p, top-k or penalties. Its prompts were written {_rendering(facts)}."""


def _rendering(facts: CardFacts) -> str:
    """What stood around the prompts, as a clause."""
    tasks, with_it = [share.task for share in facts.manifest.tasks], _templated(facts)
    if with_it is None:
        return "with the chat template or without: that is not known, as an earlier p2prl made the run"
    if not with_it:
        unused = "; the tokenizer has a chat template, which the run did not use" if facts.has_chat_template else ""
        return f"as plain text, without a chat template{unused}"
    rest = [task for task in tasks if task not in with_it]
    which = f"those of {', '.join(map(code, with_it))}, and not around the others" if rest else "every prompt"
    return f"with the tokenizer's chat template (`apply_chat_template`) around {which}"


def _templated(facts: CardFacts) -> list[str] | None:
    """Tasks whose prompts have the chat template around them; None where that is not known of rows."""
    data = {each.task for each in facts.manifest.data_sets}
    if data and facts.prompts is None:
        return None
    rows = facts.prompts is not None and facts.prompts.template_blake3 is not None
    made = any(facts.manifest.prompt_frame)
    return [share.task for share in facts.manifest.tasks if (rows if share.task in data else made)]


def _run_rows(facts: CardFacts) -> Iterable[tuple[str, str]]:
    manifest, totals, reward = facts.manifest, facts.totals, facts.reward
    weight = sum(share.weight for share in manifest.tasks)
    yield "Base model", code(manifest.base_model)
    yield "Parameters", f"{manifest.parameters:,}"
    if manifest.lora is not None:
        rank = manifest.lora.rank
        yield "Adapters", f"LoRA of rank {rank}, which alone were trained: added to the weights here, and in `adapter/`"
    yield "License", code(manifest.licence)
    yield "Content policy", code(manifest.content_policy)
    yield "Tasks", ", ".join(f"{code(share.task)} {share.weight / weight:.0%}" for share in manifest.tasks)
    yield "Loss, as set now", code(json.dumps(facts.loss, sort_keys=True, ensure_ascii=False, default=str))
    yield "Updates", f"{facts.step:,}"
    yield "Policy versions", f"{facts.versions:,}, published as {code(manifest.dtype)}"
    yield "Staleness bound", f"{manifest.staleness_bound:,} updates"
    sampling = manifest.sampling
    shape = f"{sampling.group_size} completions per prompt, at most {sampling.max_new_tokens:,} tokens"
    yield "Sampling", f"temperature {sampling.temperature:g}, {shape}, computed in {code(manifest.engine_dtype)}"
    yield "Created", time_text(manifest.created_ms) or "–"
    if reward is not None:
        yield "Trained", f"{time_text(reward.began_ms)} to {time_text(reward.ended_ms)}"
    yield "Verified groups", f"{totals.verified_groups + totals.sampled_groups:,}"
    yield "Verified tokens", f"{totals.verified_tokens:,}"
    yield "Rejected groups", f"{totals.rejected_groups:,}, and {totals.expired_groups:,} that arrived too stale"


def _prompt_rows(facts: CardFacts) -> Iterable[tuple[str, str]]:
    yield "Prompts", f"written {_rendering(facts)}"
    if (record := facts.prompts) is not None:
        if record.template_blake3 is not None and _templated(facts):
            yield "BLAKE3 of the chat template", code(record.template_blake3)
        yield "System prompt", code(record.system) if record.system else "none"
    yield "Reward trained on", code(facts.manifest.reward)
    if model := reward_model_of(facts.manifest.reward):
        yield (
            "Reward model",
            f"digest beginning {code(model)}; the learner alone has it, so nobody can check the rewards",
        )
    if facts.preferences:
        yield "Preferences trained on too, as set now", facts.preferences
    for data in facts.manifest.data_sets:
        yield f"Scorers of {code(data.task)}, with their weights", code(data.scoring)
        yield f"Rows of {code(data.task)}", _rows(data)


def _rows(data: DataSet) -> str:
    held_out = (
        f"; of those held out, never trained on, {code(data.held_out.hex())}" if data.held_out else "; none held out"
    )
    digests = f"prompts {code(data.prompts.root.hex())}, rows as scored {code(data.answers.root.hex())}"
    return f"{data.rows:,} to train on. Digests in the signed manifest: {digests}{held_out}"


def _evaluation(facts: CardFacts) -> str:
    head, found = "## Evaluation\n\n", facts.evaluation
    if found is None:
        return f"{head}The learner measured no version up to this one. `p2prl eval RUN` measures a checkpoint."
    which = f"Version {found.version:,}, of update {found.step:,}"
    if found.step != facts.step:
        which += f" and not the exported {facts.step:,}"
    lines = "\n".join(_evaluated(task) for task in found.tasks)
    return f"{head}{which}, on prompts that are never trained on. In brackets: 95 % intervals over prompts.\n\n{lines}"


def _evaluated(task: EvaluatedTaskDocument) -> str:
    rates = [f"greedy {_rate(task.greedy_pass)}", *(f"pass@{k} {_rate(rate)}" for k, rate in task.pass_at.items())]
    return f"- {code(task.task)}, {counted(task.prompts, f'{task.split} prompt')}: {', '.join(rates)}"


def _rate(rate: RateDocument) -> str:
    return f"{rate.rate:.3f} [{rate.low:.3f}, {rate.high:.3f}]"


def _reward(facts: CardFacts) -> str:
    reward = facts.reward
    if reward is None:
        return "## Reward\n\nToo few updates to compare."
    bound = facts.manifest.staleness_bound
    return f"""## Reward

{reward.first:.3f} in the first {reward.updates} updates, {reward.last:.3f} in the last {reward.updates}.

This is the mean reward of the groups trained on: completions sampled at the run's temperature by policies up to \
{bound:,} updates old, scored by the learner with the reward trained on. It is not a measurement on held-out prompts \
or on another benchmark."""


def _contributors(facts: CardFacts) -> str:
    head = "## Contributors\n\n"
    if facts.ledger_incident is not None:
        return head + f"The ledger could not be verified, so nobody is listed: {code(facts.ledger_incident)}"
    if not facts.people:
        return head + "None yet."
    rows = [
        (
            code(person.handle),
            code(person.id[-8:]),
            f"{person.verified_tokens:,}",
            f"{person.credit:.6g}",
            code(person.receipts_root[:_ROOT_CHARS]),
        )
        for person in facts.people[:MAX_ROWS]
    ]
    more = len(facts.people) - len(rows)
    rest = f"\n\nAnd {more:,} more, in {code(LEDGER_FILE)}." if more else ""
    table = _table(("Name", "Peer id ends in", "Verified tokens", "Credit", "Proof"), rows)
    proof = (
        f"The proof is the beginning of the root of a contributor's receipts, a digest that `p2prl ledger verify "
        f"{LEDGER_FILE} --json` computes again and prints as `receipts_root`."
    )
    return f"{head}{table}{rest}\n\nNames are derived from public keys. {proof} {CREDIT_DEFINITION}"


def _verification(facts: CardFacts) -> str:
    learner = facts.manifest.learner
    rows = [
        ("Ledger entries", f"{facts.ledger_height:,}"),
        ("Ledger root", code(facts.ledger_root)),
        ("Run", code(facts.run_id)),
        ("Learner's peer id", code(peer_id_of(learner))),
        ("Learner's public key", code(learner.hex())),
        ("BLAKE3 of the weights", code(facts.weights_digest)),
        ("Exported by", code(f"p2prl {facts.program}")),
    ]
    text = "## Verify it\n\n"
    if facts.ledger_incident is None:
        text += (
            "Every group in these sums has a receipt that the learner signed, in a ledger whose entries are chained. "
            f"{code(LEDGER_FILE)} is that ledger at the time of the export. Anyone can add it up again:\n\n"
            f"```console\n$ p2prl ledger verify {LEDGER_FILE}\n```\n\n"
        )
    text += _list(rows)
    if facts.version is not None:
        text += (
            f"\n\nThe learner's signed manifest of version {facts.version} names the same digest: BLAKE3 over all "
            "tensors, each once, in the order of the files."
        )
    return text


def _list(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
