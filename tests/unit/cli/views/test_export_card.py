"""Model card: its facts, and that no text a stranger chose becomes markup or metadata."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from markdown_it.token import Token

from p2prl.cli.views.export_card import MAX_ROWS, CardFacts, RewardChange, code, license_metadata, model_card
from p2prl.config.prompt_record import PromptRecord
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.protocol.manifests import RunManifest, Sampling, TaskShare
from p2prl.scoreboard.documents.api_schema import EvaluatedTaskDocument, EvaluationDocument, RateDocument
from p2prl.scoreboard.documents.api_views import run_document
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl_lab.testing.sample_ledgers import MemorySource, manifest, sample_run

HOSTILE = (
    "</td><script>alert(1)</script>",
    "[click](https://evil.example) ![x](https://evil.example/x.png)",
    "https://evil.example www.evil.example a@evil.example <https://evil.example>",
    "` `` ``` ```` a | b \\| c \\` d",
    "`",
    "\\\\| <img src=x onerror=alert(1)> \\| c",
    "--- # heading * item > quote ~~~ $$x$$ :smile: @someone",
    "&lt;b&gt; &#60;script&#62;",
    "**bold** _em_ | --- | --- |",
    "{{ jinja }} {% raw %} ${shell}",
)


def facts(described: RunManifest | None = None, **changes: Any) -> CardFacts:
    writer = sample_run(0, steps=6)
    snapshot = MemorySource(writer).snapshot()
    assert snapshot.board is not None
    plain: dict[str, Any] = {
        "manifest": described or manifest(),
        "run_id": "ab" * 32,
        "step": 1_500,
        "versions": 751,
        "version": 750,
        "weights_digest": "cd" * 32,
        "dtype": "bfloat16",
        "has_chat_template": True,
        "base_is_local": False,
        "loss": {"name": "gepo_t", "options": {"sharpness": 1}},
        "prompts": PromptRecord(template_blake3=None, system=""),
        "preferences": "",
        "evaluation": None,
        "reward": RewardChange(first=0.25, last=0.75, updates=20, began_ms=0, ended_ms=86_400_000),
        "totals": run_document(snapshot).totals,
        "people": leaderboard_document(snapshot, by="people", limit=1_000).people,
        "ledger_height": snapshot.board.height,
        "ledger_root": "ef" * 32,
        "ledger_incident": None,
        "source": ".",
        "program": "0.1.0",
    }
    return CardFacts(**{**plain, **changes})


def parsed(card: str) -> list[Token]:
    """Every token of the card's Markdown, as an independent parser with tables and automatic links reads it."""
    body = card.split("\n---\n", 1)[1]
    reader = MarkdownIt("gfm-like", {"html": True, "linkify": False}).enable("table")
    found: list[Token] = []
    for token in reader.parse(body):
        found += [token, *(token.children or [])]
    return found


def metadata_of(card: str) -> dict[str, Any]:
    """The card's metadata, as the hub's own library reads it."""
    read: Any = ModelCard(card, ignore_metadata_errors=False).data
    found: dict[str, Any] = read.to_dict()
    return found


def kinds(card: str) -> Counter[str]:
    return Counter(token.type for token in parsed(card))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    described = manifest(
        name=text, goal=text, licence=text, content_policy=text, base_model=text,
        tasks=(TaskShare(text, 1.0),),
    )  # fmt: skip
    card = model_card(facts(described, loss={"name": text}))
    plain = model_card(facts(manifest(tasks=(TaskShare("chain4", 1.0),))))
    assert kinds(card) == kinds(plain)
    # No table holds such text: readers disagree on where a cell ends.
    assert [line for line in card.splitlines() if "|" in line[:1]] == [
        line for line in plain.splitlines() if "|" in line[:1]
    ]
    assert not {"html_inline", "html_block", "link_open", "image"} & set(kinds(card))
    spans = [token.content for token in parsed(card) if token.type == "code_inline"]
    assert spans.count(text) == 6  # title, goal, base model, license, content policy, task
    metadata = metadata_of(card)
    assert metadata["license"] == "other"
    assert set(metadata) <= {"license", "license_name", "library_name", "pipeline_tag", "tags"}
    assert metadata["license_name"].replace("-", "").replace(".", "").isalnum()


def test_control_characters_and_line_breaks_are_removed() -> None:
    text = "one\n---\nlicense: mit\r\n\x1b[31mred\u202etxet\u2028end\x00"
    assert code(text) == "`one --- license: mit  [31mredtxet end`"
    card = model_card(facts(loss={"name": text}, ledger_incident=text))
    assert not any(ord(c) < 32 and c != "\n" for c in card)
    assert "\u202e" not in card
    assert kinds(card) == kinds(model_card(facts(ledger_incident="x")))


def test_metadata_names_license_and_base_model() -> None:
    data = metadata_of(model_card(facts(manifest(base_model="Qwen/Qwen3-0.6B"))))
    assert data["license"] == "apache-2.0"
    assert (data["base_model"], data["base_model_relation"]) == ("Qwen/Qwen3-0.6B", "finetune")
    assert data["library_name"] == "transformers"
    assert "p2prl" in data["tags"]
    for base, local in (("made here: chain4, seed 0", False), ("/home/me/qwen", False), ("models/qwen", True)):
        described = model_card(facts(manifest(base_model=base), base_is_local=local))
        assert "base_model" not in metadata_of(described)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MIT", {"license": "mit"}),
        (" Apache-2.0 ", {"license": "apache-2.0"}),
        ("My License, v2: (c)", {"license": "other", "license_name": "my-license-v2-c"}),
        ("ライセンス", {"license": "other", "license_name": "unnamed"}),
    ],
)
def test_license_for_the_hub(text: str, expected: dict[str, str]) -> None:
    assert license_metadata(text) == expected


def test_facts_of_the_run() -> None:
    described = manifest(
        tasks=(TaskShare("chain4", 3.0), TaskShare("sums", 1.0)), sampling=Sampling(0.6, 64, 8), staleness_bound=32
    )
    card = model_card(facts(described))
    for line in (
        "- Tasks: `chain4` 75%, `sums` 25%",
        "- Sampling: temperature 0.6, 8 completions per prompt, at most 64 tokens, computed in `float32`",
        "- Staleness bound: 32 updates",
        "- Updates: 1,500",
        "- Policy versions: 751, published as `float32`",
        "0.250 in the first 20 updates, 0.750 in the last 20.",
        "- Trained: 1970-01-01T00:00:00Z to 1970-01-02T00:00:00Z",
        "the weights of policy version 750 in `bfloat16`, bit for bit",
        f"- Ledger root: `{'ef' * 32}`",
        f"- Run: `{'ab' * 32}`",
        f"- Learner's public key: `{described.learner.hex()}`",
    ):
        assert line in card
    rounded = model_card(facts(version=None, reward=None))
    assert "not those of a published version" in rounded
    assert "signed manifest" not in rounded
    assert "Too few updates" in rounded
    assert "Adapters" not in card
    adapted = model_card(facts(manifest(lora=LoraSpec(16, 32.0, ("q_proj",)))))
    assert "- Adapters: LoRA of rank 16, which alone were trained" in adapted


def evaluation(step: int, task: str = "chain4") -> EvaluationDocument:
    greedy, four = RateDocument(rate=0.9, low=0.881, high=0.917), RateDocument(rate=0.95, low=0.935, high=0.962)
    measured = EvaluatedTaskDocument(
        task=task, split="held-out", prompts=1_024, samples=4, greedy_pass=greedy, pass_at={"4": four},
        score_mean=0.8, entropy_per_token=0.1, completion_tokens_mean=12.0, truncated_share=0.0,
    )  # fmt: skip
    return EvaluationDocument(version=740, step=step, evaluated_at=None, tasks=[measured])


def test_evaluation_with_its_intervals() -> None:
    card = model_card(facts(evaluation=evaluation(1_480)))
    assert "Version 740, of update 1,480 and not the exported 1,500, on prompts that are never trained on." in card
    assert "- `chain4`, 1,024 held-out prompts: greedy 0.900 [0.881, 0.917], pass@4 0.950 [0.935, 0.962]" in card
    assert "Version 740, of update 1,500, on prompts" in model_card(facts(evaluation=evaluation(1_500)))
    assert "measured no version up to this one" in model_card(facts())
    hostile = model_card(facts(evaluation=evaluation(1_480, task="</td><script>")))
    assert kinds(hostile) == kinds(card)


def test_contributors_most_credit_first_and_no_more_than_fit_a_page() -> None:
    plain = facts()
    many = plain.people[:1] * (MAX_ROWS + 3)
    card = model_card(facts(people=many))
    assert card.count(f"| `{plain.people[0].handle}` |") == MAX_ROWS
    assert "And 3 more" in card
    listed = model_card(plain)
    places = [listed.index(f"| `{p.id[-8:]}` | {p.verified_tokens:,} | {p.credit:.6g} |") for p in plain.people]
    assert len(places) > 1
    assert places == sorted(places)
    assert "None yet." in model_card(facts(people=[]))


def test_preferences_are_told_where_there_are_some() -> None:
    assert "Preferences" not in model_card(facts())
    assert "DPO on 9 pairs" in model_card(facts(preferences="DPO on 9 pairs"))
