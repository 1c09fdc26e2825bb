"""`p2prl watch`, `me` and `top`: what a machine made and earned, from its own files, without a stranger's controls."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from p2prl.cli.commands.me import contribution_lines
from p2prl.cli.commands.top import TopView, command_of
from p2prl.cli.commands.watch import rollout_lines
from p2prl.config.owner_files import save_memberships
from p2prl.errors import ConfigError, MachineError
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.membership_statements import sign_membership, sign_team_name
from p2prl.quantity_text import credit
from p2prl.scoreboard.display_names import display_name
from scripts.worker_screens import SAMPLING
from tests.command_doc import json_keys
from tests.json_shapes import breaches
from tests.unit.cli.commands.test_receipts import ME, Home
from tests.unit.cli.invocation import invoke, json_of
from tests.unit.learner.small_run import NOW, identity


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.spool.close()
    made.run.close()


def test_watch_shows_the_newest_rollout_with_its_text(home: Home) -> None:
    home.sample(0)
    name = home.sample(1)
    shown = json_of("watch", "--home", home.path)
    assert set(shown) == json_keys("p2prl watch")
    assert (shown["group"], shown["slot"], shown["state"]) == (name.hex(), 1, "delivered")
    group = home.run.group(home.policy, ME, 1)
    codec = TextCodec(home.run.loaded.tokenizer, home.run.loaded.model)
    assert shown["prompt"] == codec.decode(_ids(group.prompt))
    assert [each["text"] for each in shown["completions"]] == [codec.decode(_ids(c.tokens)) for c in group.completions]
    lines = invoke("watch", "unit", "--home", home.path).stdout
    assert "slot 1 of v0" in lines
    assert "#1" in lines


def _ids(raw: bytes) -> list[int]:
    return [int.from_bytes(raw[place : place + 4], "little") for place in range(0, len(raw), 4)]


def test_watch_says_what_to_do_without_a_rollout(home: Home, tmp_path: Path) -> None:
    assert isinstance(invoke("watch", "--home", tmp_path / "empty").exception, ConfigError)
    nothing = invoke("watch", "--home", home.path).exception
    assert isinstance(nothing, ConfigError)
    assert "p2prl join" in nothing.remedy


def test_me_adds_up_all_runs(home: Home, tmp_path: Path) -> None:
    first, second = home.sample(0), home.sample(1)
    home.judge(first, 0, ReceiptState.VERIFIED)
    home.judge(second, 1, ReceiptState.REJECTED, "seed_mismatch")
    mine = json_of("me", "--home", home.path)
    assert set(mine) == json_keys("p2prl me") - {"energy"}
    (part,) = mine["runs"]
    assert part["groups"] == {"verified": 1, "rejected": 1}
    assert (part["tokens"], mine["tokens"], mine["groups_verified"]) == (16, 16, 1)
    assert mine["credit"] == pytest.approx(16 * 2 * home.run.manifest.parameters / 1e15)
    assert list(mine["days"].values()) == [16]
    text = invoke("me", "--home", home.path).stdout
    assert "50%" in text
    assert "unit" in text
    assert "Start with" in invoke("me", "--home", tmp_path / "empty").stderr


def test_me_tells_the_energy_that_was_measured(home: Home) -> None:
    home.sample(0)
    assert "energy" not in json_of("me", "--home", home.path)
    energy = {"of": [], "kwh": 0.0, "total_kwh": 1.5, "total_tokens": 3_000_000}
    (home.folder / "status.json").write_text(json.dumps({"peer": ME.peer_id, "energy": energy}))
    (home.path / "limits.json").write_text(json.dumps({"energy.price": "0.30 EUR"}))
    mine = json_of("me", "--home", home.path)
    assert mine["energy"] == {"kwh": 1.5, "tokens_per_kwh": 2_000_000, "cost": 0.45, "currency": "EUR"}
    assert set(mine) == json_keys("p2prl me")
    assert not breaches(mine, "p2prl me")
    text = " ".join(invoke("me", "--home", home.path).stdout.split())
    assert (
        "energy 1.500 kWh measured while it worked; 0.45 EUR at the price you set now; 2,000,000 verified tokens a kWh"
    ) in text


def test_me_names_its_page_on_each_trusted_index(home: Home) -> None:
    home.sample(0)
    (home.folder / "status.json").write_text(json.dumps({"peer": ME.peer_id}))
    assert json_of("me", "--home", home.path)["pages"] == []
    for url in ("https://index.example", "http://127.0.0.1:8100"):
        invoke("runs", "trust", url, "--home", home.path)
    pages = [f"http://127.0.0.1:8100/people/{ME.peer_id}", f"https://index.example/people/{ME.peer_id}"]
    assert json_of("me", "--home", home.path)["pages"] == pages
    assert invoke("me", "--home", home.path).stdout.splitlines()[-2:] == pages


def test_me_names_the_row_and_its_team(home: Home) -> None:
    home.sample(0)
    (home.folder / "status.json").write_text(json.dumps({"peer": ME.peer_id}))
    assert json_of("me", "--home", home.path)["runs"][0]["team"] == ""
    name = sign_team_name(identity("team"), "Red Pandas", serial=1)
    save_memberships(home.path, [sign_membership(ME, name, serial=1)])
    (part,) = json_of("me", "--home", home.path)["runs"]
    assert (part["name"], part["team"]) == (display_name(ME.public_key), "Red Pandas")
    text = " ".join(invoke("me", "--home", home.path).stdout.split())
    assert f"You are {display_name(ME.public_key)} on the board, in the team Red Pandas." in text


ANSWERS = [
    {"text": f"answer {n}", "tokens": 4, "finished": n != 5, "reward": reward}
    for n, reward in enumerate([0.0, 0.5, 1.0, 0.25, 0.0, -1.0])
]
ROLLOUT = {
    "run": "chain", "seat": "seat-1", "group": "ab" * 32, "task": "chain4", "version": 3, "slot": 7, "sampled_at": NOW,
    "seconds": 2.0, "state": "rejected", "reason": "seed_mismatch", "learner_reward": None,
    "prompt": "3+4=", "completions": ANSWERS,
}  # fmt: skip


def test_the_best_and_the_worst_answer_are_shown() -> None:
    text = "\n".join(rollout_lines(ROLLOUT, now=NOW + 90, width=80))
    assert "sampled 2 min ago: 6 answers, 24 tokens, 12 tokens/s" in " ".join(text.split())
    assert "1.00 answer 2" in text
    assert "-1.00 answer 5 … (cut off" in text
    assert "answer 4" not in text
    assert "and 2 more answers" in text
    assert "mean 0.12 by this machine's own scoring" in text
    assert "The tokens are not those that the policy samples" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_a_file_gets_every_text_whole() -> None:
    """A pipe has no columns: long texts were broken at 80, and ended after eight lines."""
    long = "\n".join(f"line {n} " + "word " * 40 + "end" for n in range(20))
    rollout = {**ROLLOUT, "prompt": long, "completions": [{**ANSWERS[0], "text": long}]}
    lines = rollout_lines(rollout, now=NOW, width=None)
    for line in long.splitlines():
        assert sum(line in shown for shown in lines) == 2
    assert not any(line.endswith("…") for line in lines)


def test_a_strangers_text_cannot_control_the_terminal() -> None:
    hostile = {**ROLLOUT, "prompt": "a\x1b[2J\u202eb\rc", "completions": [{**ANSWERS[0], "text": "x\x07" * 5_000}]}
    lines = rollout_lines(hostile, now=NOW, width=60)
    text = "\n".join(lines)
    assert not {"\x1b", "\u202e", "\r", "\x07"} & set(text)
    assert len(lines) < 24, "a long answer is cut"


def test_answers_that_only_the_learner_scores_have_no_reward() -> None:
    unscored = [{**answer, "reward": None} for answer in ANSWERS]
    text = "\n".join(rollout_lines({**ROLLOUT, "completions": unscored}, now=NOW, width=80))
    assert "only the learner can score" in text
    judged = {**ROLLOUT, "completions": unscored, "learner_reward": 0.5}
    assert "mean 0.50 by the learner" in "\n".join(rollout_lines(judged, now=NOW, width=80))


def test_contribution_counts_days_in_utc() -> None:
    part = {"run": "r" * 40, "seat": "seat-1", "name": "Noble Seal 47", "team": "", "groups": {"verified": 3},
            "tokens": 1_234_567_890, "credit": 1.5e-06, "last_at": NOW - 3_599}  # fmt: skip
    document = {"runs": [part], "days": {"2027-01-15": 60, "2026-12-01": 30}, "groups_verified": 3, "tokens": 90,
                "credit": 1.5, "pages": [], "time": NOW}  # fmt: skip
    lines = contribution_lines({**document, "time": 1_800_000_000.0}, width=80)
    text = "\n".join(lines)
    assert "You are Noble Seal 47" in text
    assert "60 tokens, 60 of them today" in text, "1 December is longer than two weeks ago"
    row = next(line for line in lines if "rrr…" in line)
    assert row.endswith("ago"), "a row is one line of 80 columns"
    assert f" {credit(1.5e-06)} " in row, "the board's own text for it"
    assert f"{credit(1.5)}" in next(line for line in lines if line.startswith("all "))
    assert max(map(len, lines)) <= 80


def drawn(view: TopView, width: int = 100) -> str:
    output = io.StringIO()
    Console(file=output, width=width, color_system=None).print(view)
    return output.getvalue()


def test_top_shows_one_worker_in_full_and_the_others_in_a_line() -> None:
    volunteer = {**SAMPLING, "running": True, "seat": "seat-1"}
    seeder = {"role": "seeder", "run": "other", "seat": "seeder-1", "running": True, "state": "seeding"}
    first = drawn(TopView([volunteer, seeder], 0, now=NOW, message="paused"))
    assert "judged groups passed" in first
    assert "> chain-of-sums  volunteer seat-1  sampling" in first
    assert "  other  seeder seeder-1  seeding" in first
    assert "Tab next worker" in first
    assert first.splitlines()[-1] == "paused"
    second = drawn(TopView([volunteer, seeder], 1, now=NOW))
    assert "judged groups passed" not in second
    assert "> other" in second
    assert "Tab" not in drawn(TopView([volunteer], 0, now=NOW))


def test_ending_a_worker_takes_shift() -> None:
    assert [command_of(key) for key in ("p", "r", "f", "s", "F", "S", "")] == [
        "pause", "resume", "", "", "finish", "stop", "",
    ]  # fmt: skip


def test_top_needs_a_terminal(tmp_path: Path) -> None:
    refused = invoke("top", "--home", tmp_path).exception
    assert isinstance(refused, MachineError)
    assert "p2prl status" in refused.remedy
