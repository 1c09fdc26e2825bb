"""New runs of data: complete or not at all, named by their data, without anything local."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoTokenizer

from p2prl.config.data_options import DataOptions, data_plans
from p2prl.config.learner_memory import plan_learner_memory
from p2prl.config.new_run import RunFolder, init_run
from p2prl.config.presets import preset_by_name
from p2prl.config.run_prompts import make_prompts
from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.learner.training.memory_config import MemoryConfig
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.protocol.manifests import TaskShare
from p2prl.protocol.wire_codec import encode
from p2prl.tasks.data.packed_data import PackedPrompts, PackedRows
from tests.unit.models.chat_tokenizer import TEMPLATE, save_chat_model
from tests.unit.tasks.data.packing_rig import sums, write_rows

SETTINGS = preset_by_name("chain4").settings_text()
ROWS = sums(40)
SCORER = "def score(prompts, completions, answer, **columns):\n    return [1.0 for _ in completions]\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("secret-place") / "model")


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "train.jsonl", ROWS)


def made(directory: Path, model: Path, train: Path, *, notices: list[str] | None = None, **changes: Any) -> RunFolder:
    """A run of `train`, whose options are in `changes` with those of the plan."""
    names = {field.name for field in DataOptions.__dataclass_fields__.values()}
    options = {"data": [f"sums={train}"], "scorers": ["number"], **{k: v for k, v in changes.items() if k in names}}
    plan = RunPlan(
        name="unit",
        goal="test",
        task="",
        model=str(model),
        max_new_tokens=16,
        data=data_plans(DataOptions(**options)),
        **{key: value for key, value in changes.items() if key not in names},
    )
    told: list[str] = [] if notices is None else notices
    return init_run(directory, plan, settings=SETTINGS, on_progress=lambda stage, share: None, on_notice=told.append)


def test_a_run_of_data_is_complete(tmp_path: Path, model: Path, train: Path) -> None:
    notices: list[str] = []
    held_out = write_rows(tmp_path / "held.jsonl", sums(5, first=90))
    (tmp_path / "own.py").write_text(SCORER)
    scorers = ["number", f"0.5*{tmp_path / 'own.py'}:score"]
    folder = made(tmp_path / "run", model, train, notices=notices, held_out=[str(held_out)], scorers=scorers)
    manifest, data = folder.manifest, tmp_path / "run" / "data" / "sums"
    manifest.check()
    (data_set,) = manifest.data_sets
    assert sorted(path.name for path in data.iterdir()) == [
        "held_out_prompts.packed",
        "held_out_rows.packed",
        "prompts.packed",
        "rows.packed",
        "scorer.py",
    ]
    assert [(share.task, share.weight) for share in manifest.tasks] == [("sums", 1.0)]
    assert (data_set.task, data_set.rows, len(data_set.held_out)) == ("sums", 40, 32)
    assert [each["scorer"] for each in json.loads(data_set.scoring)["rewards"]] == ["number", "function"]
    for blob, name in (
        (data_set.prompts, "prompts.packed"),
        (data_set.answers, "rows.packed"),
        (data_set.code, "scorer.py"),
    ):
        assert blob is not None
        assert blob.size_bytes == (data / name).stat().st_size
    assert (data / "scorer.py").read_text() == SCORER
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts, rows = PackedPrompts(data / "prompts.packed", rows=40), PackedRows(data / "rows.packed", rows=40)
    for number, row in enumerate(ROWS):
        asked = [{"role": "user", "content": row["question"]}]
        expected = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        assert prompts.token_ids(number) == tuple(expected)
        assert rows.row(number)["answer"] == row["answer"]
    assert any("40 rows to train on, 5 for evaluation only" in notice for notice in notices)


def test_nothing_local_is_in_the_manifest(tmp_path: Path, model: Path, train: Path) -> None:
    (tmp_path / "own.py").write_text(SCORER)
    scorers = [f"{tmp_path / 'own.py'}:score"]
    folder = made(tmp_path / "run", model, train, scorers=scorers, chat_template=TEMPLATE)
    document = encode(folder.manifest)
    for word in ("secret-place", "train.jsonl", "own.py", tmp_path.name, str(Path.home())):
        assert word.encode() not in document
    assert folder.manifest.base_model.startswith("an unnamed gpt2 of ")
    assert "sums" in folder.manifest.content_policy
    assert "seed" not in folder.manifest.content_policy


def content(folder: RunFolder) -> str:
    """Digest of the manifest but for its time and key."""
    return hashlib.sha256(encode(msgspec.structs.replace(folder.manifest, created_ms=0, learner=bytes(32)))).hexdigest()


def test_every_change_of_data_or_scorer_makes_another_run(tmp_path: Path, model: Path, train: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(SCORER)
    base = {"scorers": [f"{own}:score"], "held_out": [str(write_rows(tmp_path / "held", sums(3, first=90)))]}
    same = [content(made(tmp_path / f"same-{n}", model, train, **base)) for n in range(2)]
    assert same[0] == same[1]
    seen = set(same)
    changed_row = [*ROWS[:7], {**ROWS[7], "question": "Why?"}, *ROWS[8:]]
    changed_answer = [*ROWS[:7], {**ROWS[7], "answer": "#### 15"}, *ROWS[8:]]
    for number, rows in enumerate((changed_row, changed_answer, ROWS[1:])):
        seen.add(content(made(tmp_path / f"rows-{number}", model, write_rows(tmp_path / "other", rows), **base)))
    changed_held = str(write_rows(tmp_path / "held-2", sums(3, first=80)))
    variants: list[dict[str, Any]] = [
        {**base, "held_out": [changed_held]},
        {**base, "scorers": ["number"]},
        {**base, "scorers": ["number:tolerance=0.1"]},
        {**base, "scorers": [f"2*{own}:score"]},
        {**base, "system": "Be brief."},
        {**base, "chat_template": "off"},
        {**base, "data": [f"sums={train}@2"]},
    ]
    for number, variant in enumerate(variants):
        seen.add(content(made(tmp_path / f"variant-{number}", model, train, **variant)))
    own.write_text(SCORER.replace("1.0", "0.9"))
    seen.add(content(made(tmp_path / "code", model, train, **base)))
    assert len(seen) == 1 + 3 + len(variants) + 1


def test_a_mix_frames_procedural_prompts(tmp_path: Path, model: Path, train: Path) -> None:
    notices: list[str] = []
    folder = made(
        tmp_path / "run",
        model,
        train,
        notices=notices,
        mix=(TaskShare("chain4", 0.5),),
        system="Count.",
        eval_split=0.2,
    )
    manifest = folder.manifest
    assert [(share.task, share.weight) for share in manifest.tasks] == [("chain4", 0.5), ("sums", 1.0)]
    assert manifest.prompt_frame == ("<b>[system]Count.\n[user]", "\n[assistant]")
    assert "sums" in manifest.content_policy
    assert "public seeds" in manifest.content_policy
    framed = len("[system]Count.\n[user]\n[assistant]") + 1 + len("1+1+1+1=")
    assert f"prompts has {framed} tokens" in notices[0]
    one_row = replace(folder.settings.learner, memory=MemoryConfig(micro_batch_tokens=1))
    folder = replace(folder, settings=replace(folder.settings, learner=one_row))
    longest = PackedPrompts(tmp_path / "run" / "data" / "sums" / "prompts.packed").longest
    assert longest > framed
    assert plan_learner_memory(folder, torch.device("cpu"), notices.append).rule.tokens == longest + 16


def test_turns_of_an_environment_are_framed(tmp_path: Path, model: Path, train: Path) -> None:
    for task, frame in (("guess", ("\n[user]", "\n[assistant]")), ("chain4", ("", ""))):
        folder = made(tmp_path / task, model, train, notices=[], mix=(TaskShare(task, 1.0),))
        assert folder.manifest.turn_frame == frame


def test_a_template_file_becomes_the_models_own(tmp_path: Path, train: Path) -> None:
    bare = save_chat_model(tmp_path / "bare", template=None)
    plain = made(tmp_path / "plain", bare, train)
    assert plain.manifest.prompt_frame == ("", "")
    made(tmp_path / "run", bare, train, chat_template=TEMPLATE)
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "model").chat_template == TEMPLATE
    first = PackedPrompts(tmp_path / "plain" / "data" / "sums" / "prompts.packed").token_ids(0)
    assert first == tuple(AutoTokenizer.from_pretrained(bare).encode(ROWS[0]["question"]))


def test_a_faulty_row_leaves_nothing_behind(tmp_path: Path, model: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", [*ROWS, {"question": "Last?", "answer": "many"}])
    with pytest.raises(ConfigError, match=r"train\.jsonl, line 41: .*answer"):
        made(tmp_path / "runs" / "run", model, train)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("broken", "said"),
    [("eos_token_id", "no stop token"), ("tokenizer.json", "no tokenizer")],
)
def test_models_without_stop_token_or_tokenizer_are_refused(
    tmp_path: Path, train: Path, broken: str, said: str
) -> None:
    changed = save_chat_model(tmp_path / "changed")
    if broken.endswith(".json"):
        for path in changed.glob("tokenizer*"):
            path.unlink()
    else:
        for path in changed.glob("*.json"):
            document = json.loads(path.read_text())
            if path.name != "tokenizer.json":
                path.write_text(json.dumps({k: v for k, v in document.items() if k not in (broken, "eos_token")}))
    with pytest.raises(ConfigError, match=said) as caught:
        made(tmp_path / "runs" / "run", changed, train)
    assert caught.value.remedy
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": None}, "there is no model"),
        ({"data": ()}, "0 tasks"),
        ({"mix": (TaskShare("chess", 1.0),)}, "chess"),
    ],
)
def test_impossible_mixes_are_refused(train: Path, changes: dict[str, Any], said: str) -> None:
    data = data_plans(DataOptions(data=[f"sums={train}"], scorers=["number"]))
    plan = RunPlan(name="unit", goal="test", task="", model="m", data=data)
    with pytest.raises(ConfigError, match=said):
        replace(plan, **changes)
    with pytest.raises(ConfigError, match="'chain4' is the name of a task"):
        replace(plan, data=(replace(data[0], task="chain4"),))


def test_a_length_penalty_that_no_completion_reaches_is_refused(train: Path) -> None:
    data = data_plans(DataOptions(data=[f"sums={train}"], scorers=["number"], length_penalty="32:16"))
    plan = RunPlan(name="unit", goal="test", task="", model="m", data=data, max_new_tokens=17)
    with pytest.raises(ConfigError, match="from 17 tokens on, and completions have at most 16") as caught:
        replace(plan, max_new_tokens=16)
    assert "--max-new-tokens 32" in caught.value.remedy


def test_a_mix_has_as_many_tasks_as_a_manifest(train: Path) -> None:
    data = data_plans(DataOptions(data=[f"sums={train}"], scorers=["number"]))
    many = tuple(replace(data[0], task=f"sums-{number}") for number in range(65))
    plan = RunPlan(name="unit", goal="test", task="", model="m", data=many[:64])
    assert len(plan.shares) == 64
    with pytest.raises(ConfigError, match="65 tasks"):
        replace(plan, data=many)


def test_steps_of_data_have_no_judge(tmp_path: Path, model: Path, train: Path) -> None:
    with pytest.raises(ConfigError, match="judges steps"):
        made(tmp_path / "run", model, train, reward="success+0.2*process")


def test_the_token_that_ends_a_turn_stops_the_model(tmp_path: Path, model: Path, train: Path) -> None:
    """Base models: the template ends turns with a token that is not the end of the model's own texts."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.bos_token_id != tokenizer.eos_token_id
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ bos_token }}{% endfor %}"
    notices: list[str] = []
    for name, chosen in (("run", template), ("plain", TEMPLATE)):
        made(tmp_path / name, model, train, chat_template=chosen, notices=notices)
    stops = [
        json.loads((tmp_path / name / "files" / "generation_config.json").read_text()) for name in ("run", "plain")
    ]
    assert stops[0] == {"eos_token_id": sorted([tokenizer.bos_token_id, tokenizer.eos_token_id])}
    assert stops[1] == {"eos_token_id": [tokenizer.eos_token_id]}
    (notice,) = [notice for notice in notices if "ends a turn" in notice]
    assert tokenizer.bos_token in notice


def test_a_model_that_cannot_take_another_stop_token_is_refused(tmp_path: Path, model: Path) -> None:
    loaded = load_pretrained(str(model))
    loaded.model.generation_config = None
    template = "{% for m in messages %}{{ m.content }}{{ bos_token }}{% endfor %}"
    plan = RunPlan(name="unit", goal="test", task="chain4", model=str(model), chat_template=template)
    with pytest.raises(ConfigError, match="which does not stop the model") as caught:
        make_prompts(plan, loaded, tmp_path, lambda stage, share: None)
    assert f"Add {loaded.tokenizer.bos_token_id} to eos_token_id" in caught.value.remedy
