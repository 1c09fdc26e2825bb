"""math-verify and reasoning-gym behind their adapters: what they score, what is refused, and rows from a seed."""

from __future__ import annotations

import json
import logging
import signal
from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.row_scorer import RowScorer
from p2prl.tasks.scorers.answer_text import UnusableRowError
from p2prl.tasks.scorers.build import build_scorer
from p2prl.tasks.scorers.extras import import_extra
from p2prl.tasks.scorers.reasoning_gym_program import main
from p2prl.tasks.scorers.reasoning_gym_rows import GymDataset, parse_source, rows
from p2prl.tasks.scorers.reasoning_gym_scorer import EXECUTES_ANSWERS, TAKES_ANY_ANSWER, refuse_unsafe, tagged_answer

GYM = '{"rewards":[{"scorer":"reasoning-gym","weight":1.0}]}'


def test_a_missing_library_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(ConfigError, match="'no_such_library'") as caught:
        import_extra("no_such_library.part", "math", scorer="math-verify")
    assert caught.value.remedy == "pip install -c constraints.txt '.[math]', in your clone"


# --- math-verify ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def math() -> RowScorer:
    pytest.importorskip("math_verify", reason="needs the extra math")
    return build_scorer('{"rewards":[{"scorer":"math-verify","weight":1.0}]}', None)


@pytest.mark.extra
@pytest.mark.parametrize(
    ("answer", "completion", "value"),
    [
        ("1/2", r"so it is $\frac{2}{4}$", 1),
        ("1/2", r"\boxed{0.5}", 1),
        ("1/2", r"\boxed{0.6}", 0),
        ("$x^2 + 2x + 1$", r"\boxed{(x+1)^2}", 1),
        ("$x^2 + 2x + 1$", r"\boxed{(x-1)^2}", 0),
        (r"thus $y = 2$ and \boxed{\{1, 2\}}", r"\boxed{\{2, 1\}}", 1),
        ("2 + 2 = 4\n#### 4", "The answer is 4", 1),
        ("1/2", "no idea", 0),
        (0.5, r"\boxed{1/2}", 1),
    ],
)
def test_expressions(math: RowScorer, answer: Any, completion: str, value: int) -> None:
    handler, (left, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    assert math.score({"answer": answer}, completion, True) == value
    assert signal.getsignal(signal.SIGALRM) is handler
    assert left == 0 or signal.getitimer(signal.ITIMER_REAL)[0] > 0, "the library's own timeout has run"


@pytest.mark.extra
def test_expressions_that_are_none(math: RowScorer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert math.score({"answer": "4"}, r"\boxed{\frac{1}{", True) == 0.0
    with pytest.raises(UnusableRowError):
        math.score({"answer": ""}, "4", True)


# --- reasoning-gym: sources ----------------------------------------------------------------------------------------


def test_sources() -> None:
    assert parse_source("reasoning-gym:leg_counting") == (GymDataset(name="leg_counting"),)
    assert parse_source("reasoning-gym:chain_sum?size=20&seed=3&min_terms=2&text=a%26b") == (
        GymDataset(name="chain_sum", size=20, seed=3, settings={"min_terms": 2, "text": "a&b"}),
    )
    assert parse_source("reasoning-gym:a?ops=[1,2]&size=5,b_2,c?size=7&seed=9") == (
        GymDataset(name="a", size=5, seed=9, settings={"ops": [1, 2]}),
        GymDataset(name="b_2", size=7, seed=9),
        GymDataset(name="c", size=7, seed=9),
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("reasoning-gym:", "names no reasoning-gym dataset"),
        ("leg_counting", "names no reasoning-gym dataset"),
        ("reasoning-gym:Leg", "names no reasoning-gym dataset"),
        ("reasoning-gym:a,,b", "names no reasoning-gym dataset"),
        ("reasoning-gym:a?size", "'size' is no setting"),
        ("reasoning-gym:a?size=0", "size is 0"),
        ("reasoning-gym:a?size=1000001", "size is 1000001"),
        ("reasoning-gym:a?size=true", "size is True"),
        ("reasoning-gym:a?seed=-1", "seed is -1"),
        ("reasoning-gym:a?seed=2147483648", "seed is 2147483648"),
        ("reasoning-gym:a,a", "named twice"),
        ("reasoning-gym:countdown", "executes the text"),
    ],
)
def test_unusable_sources(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")) as caught:
        parse_source(source)
    assert caught.value.remedy


@pytest.mark.parametrize("name", sorted(EXECUTES_ANSWERS | TAKES_ANY_ANSWER))
def test_datasets_that_execute_answers_or_take_any_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        refuse_unsafe(name)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 5 ", "5"),
        ("<answer> 5 </answer>", "5"),
        ("<answer>1</answer> <answer>2</answer> so", "2"),
        ("<answer>1</answer> <answer>2", "<answer>1</answer> <answer>2"),
        ("</answer>5", "</answer>5"),
    ],
)
def test_tagged_answers(text: str, answer: str) -> None:
    assert tagged_answer(text) == answer


# --- reasoning-gym: rows and scores --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mix() -> list[dict[str, Any]]:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")
    return list(rows("reasoning-gym:chain_sum?max_terms=3&size=2,leg_counting,arc_agi,rubiks_cube?size=3&seed=1"))


@pytest.mark.extra
def test_rows_alternate_and_repeat(mix: list[dict[str, Any]]) -> None:
    names = [row["reasoning_gym"]["dataset"] for row in mix]
    four = ["chain_sum", "leg_counting", "arc_agi", "rubiks_cube"]
    assert names == four * 2 + four[1:]
    reports: list[tuple[int, int]] = []
    again = rows("reasoning-gym:chain_sum?max_terms=3&size=2&seed=1", lambda *progress: reports.append(progress))
    made = list(again)
    assert [row.pop("answer") for row in made] == [row["reasoning_gym"]["answer"] for row in made]
    assert made == [row for row in mix if row["reasoning_gym"]["dataset"] == "chain_sum"]
    assert reports == [(1, 2), (2, 2)]


@pytest.mark.extra
def test_the_same_rows_in_this_process(mix: list[dict[str, Any]]) -> None:
    dataset = pytest.importorskip("reasoning_gym").create_dataset("chain_sum", max_terms=3, size=2, seed=1)
    assert [row["prompt"] for row in mix[::4][:2]] == [dataset[i]["question"] for i in range(2)]


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore:Exception ignored in.*arcagi:pytest.PytestUnraisableExceptionWarning")
def test_own_answers_score_1_after_storage(mix: list[dict[str, Any]]) -> None:
    scorer = build_scorer(GYM, None)
    for row in json.loads(json.dumps(mix)):
        if row["reasoning_gym"]["dataset"] == "rubiks_cube":  # many answers, none of them given
            assert "answer" not in row
            continue
        answer = row["reasoning_gym"]["answer"]
        assert scorer.score(row, f"I think <answer>{answer}</answer>", True) == 1.0
        assert scorer.score(row, f"<answer>{answer}</answer>", False) == 0.0
        lost = scorer.score(row, "I do not know", True)
        assert lost is not None
        assert lost < 0.2


@pytest.mark.extra
def test_rows_of_other_origin(mix: list[dict[str, Any]]) -> None:
    scorer = build_scorer(GYM, None)
    with pytest.raises(UnusableRowError, match="does not come from reasoning-gym"):
        scorer.score({"answer": "4"}, "4", True)
    planted = {**mix[0], "reasoning_gym": {**mix[0]["reasoning_gym"], "dataset": "puzzle24"}}
    with pytest.raises(ConfigError, match="executes the text"):
        scorer.score(planted, "4", True)


@pytest.mark.extra
@pytest.mark.parametrize(
    ("source", "message", "remedy"),
    [
        ("reasoning-gym:leg_countin", "no dataset 'leg_countin'", "leg_counting"),
        ("reasoning-gym:composite", "is a mix", "Name datasets"),
        ("reasoning-gym:chain_sum?min_tems=2", "no setting 'min_tems'", "min_terms"),
        ("reasoning-gym:chain_sum?min_terms=9&max_terms=2", "max_terms must be >= min_terms", "Correct one of"),
    ],
)
def test_sources_that_the_library_refuses(
    source: str, message: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")
    main(json.dumps([dataset.document() for dataset in parse_source(source)]))
    refusal = json.loads(capsys.readouterr().out)
    assert message in refusal["error"]
    assert remedy in refusal["remedy"]


@pytest.mark.extra
def test_what_a_dataset_prints_is_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")
    main(json.dumps([GymDataset(name="bf", size=3).document()]))
    written = capsys.readouterr()
    assert [json.loads(line)["reasoning_gym"]["dataset"] for line in written.out.splitlines()] == ["bf"] * 3
    assert written.err, "this version prints nothing: name another dataset that does"


@pytest.mark.extra
def test_a_refusal_reaches_the_caller() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")
    with pytest.raises(ConfigError, match="no dataset 'leg_countin'"):
        list(rows("reasoning-gym:leg_countin"))
