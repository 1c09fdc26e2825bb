"""`docs/tasks.md` is enough to rebuild the tasks: a second implementation, made from its text, gives equal results."""

from __future__ import annotations

import ast
import hashlib
import itertools
import operator
import random
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl.models.rewards.run_reward import RunReward
from p2prl.tasks.chain4 import Chain4
from p2prl.tasks.countdown import Countdown
from p2prl.tasks.task import Task
from p2prl.tasks.task_registry import scorer_by_task
from p2prl.tasks.walk12 import Walk12

TEXT = (Path(__file__).parents[3] / "docs/tasks.md").read_text()
TASKS: dict[str, Task] = {"chain4": Chain4(), "walk12": Walk12()}
OPERATIONS = {"chain4": 3, "walk12": 12}
WORK = {"+": operator.add, "-": operator.sub, "*": operator.mul}
STEP = r"[-+*][0-9]:[0-9]"

# --- written from the text -----------------------------------------------------------------------------------------


def prompt(task: str, seed: int) -> str:
    """Sections 1, 3 and 4."""
    domain = f"p2prl/task/{task}/v1".encode()
    stream = b"".join(
        hashlib.sha256(bytes([len(domain)]) + domain + seed.to_bytes(8, "little") + n.to_bytes(8, "little")).digest()
        for n in range(4)
    )
    numbers = [int.from_bytes(stream[i : i + 4], "little") for i in range(0, len(stream), 4)]
    text = str(numbers[0] % 10)
    for k in range(OPERATIONS[task]):
        text += "+-*"[numbers[1 + 2 * k] % 3] + str(numbers[2 + 2 * k] % 10)
    return text + "="


def running_values(task: str, text: str) -> list[int] | None:
    if not re.fullmatch(rf"[0-9]([-+*][0-9]){{{OPERATIONS[task]}}}=", text):
        return None
    values = [int(text[0])]
    for sign, digit in re.findall(r"([-+*])([0-9])", text):
        values.append(WORK[sign](values[-1], int(digit)) % 10)
    return values[1:]


def score(task: str, text: str, completion: str, finished: bool) -> float:
    """Sections 2, 3 and 4."""
    values = running_values(task, text)
    said = completion.replace(" ", "")
    if values is None or len(completion) > 131_072 or not finished:
        return 0.0
    grammar = r"[0-9+\-*=#]*#([0-9])" if task == "chain4" else rf"(?:{STEP})*#([0-9])"
    match = re.fullmatch(grammar, said)
    return float(match is not None and int(match[1]) == values[-1])


def judge(task: str, text: str, completion: str, finished: bool) -> tuple[float, list[float]]:
    """Section 5."""
    values = running_values(task, text)
    if values is None or len(completion) > 131_072:
        return 0.0, []
    said = completion.replace(" ", "")
    if task == "chain4":
        match = re.fullmatch(r"([0-9]*)(?:#([0-9]?))?", said)
        right = [str(value) for value in values]
        size = 1
    else:
        if not finished and "#" not in said:
            said = said[: len(said) - len(said) % 4]
        match = re.fullmatch(rf"((?:{STEP})*)(?:#([0-9]?))?", said)
        pairs = re.findall(r"[-+*][0-9]", text)
        right = [f"{pair}:{value}" for pair, value in zip(pairs, values, strict=True)]
        size = 4
    if match is None:
        return 0.0, []
    written = [match[1][i : i + size] for i in range(0, len(match[1]), size)]
    scores, reached = [], 0
    for step in written:
        if reached < len(right) and step == right[reached]:
            scores.append(1.0)
            reached += 1
        elif reached > 0 and step == right[reached - 1]:
            scores.append(1.0)
        else:
            scores.append(0.0)
            reached += reached < len(right)
    answer = match[2]
    if answer:
        scores.append(float(int(answer) == values[-1]))
    return float(bool(finished and written and answer and written[-1][-1] == answer)), scores


def reward(line: str, success: float, outcome: float, scores: list[float]) -> float:
    """Section 6."""
    total = 0.0
    for factor, part, suffix in re.findall(
        r"(?:([0-9.]+)\*)?(success|outcome|process)((?::clip)?(?:[:+]delta)?)", line
    ):
        values = list(scores)
        if "clip" in suffix:
            values = [min(value - 0.5, 0) for value in values]
        if "delta" in suffix:
            last = len(values)
            values = [
                0.0 if k == last else values[k - 1] if k == last - 1 else values[k - 1] - values[k]
                for k in range(1, last + 1)
            ]
        total += float(factor or 1) * {"success": success, "outcome": outcome, "process": sum(values)}[part]
    return total


# --- compared with the code ----------------------------------------------------------------------------------------


def ideal(task: str, text: str) -> str:
    values = running_values(task, text)
    assert values is not None
    if task == "chain4":
        return "".join(map(str, values)) + f"#{values[-1]}"
    pairs = re.findall(r"[-+*][0-9]", text)
    return "".join(f"{pair}:{value}" for pair, value in zip(pairs, values, strict=True)) + f"#{values[-1]}"


def completions(rng: random.Random, task: str, text: str) -> list[str]:
    """An ideal completion, damaged ones, and noise."""
    symbols = "0123456789+-*=#: x\n٣²"
    best = ideal(task, text)
    made = [best, "", "#", best[-2:], best[: rng.randrange(len(best))], best + best[-1], " ".join(best)]
    size = 1 if task == "chain4" else 4
    for _ in range(12):
        damaged = list(best)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(damaged))
            match rng.randrange(4):
                case 0:
                    damaged[at] = rng.choice(symbols)
                case 1:
                    damaged.insert(at, rng.choice(symbols))
                case 2:
                    del damaged[at]
                case 3:
                    start = at - at % size
                    damaged[start:start] = damaged[start : start + size]
        made.append("".join(damaged))
    made.append("".join(rng.choices(symbols, k=rng.randrange(12))))
    made.append("".join(rng.choices("0123456789", k=rng.randrange(8))) + rng.choice(["", "#", "#7"]))
    return made


@pytest.mark.parametrize("task", ["chain4", "walk12"])
def test_prompts(task: str) -> None:
    rng = random.Random(1)
    for seed in (0, 1, (1 << 63) - 1, *(rng.getrandbits(63) for _ in range(3000))):
        assert TASKS[task].prompt(seed) == prompt(task, seed)


@pytest.mark.parametrize("task", ["chain4", "walk12"])
def test_scores(task: str) -> None:
    rng = random.Random(2)
    counts = [0, 0]
    for _ in range(250):
        text = prompt(task, rng.getrandbits(63))
        for completion in completions(rng, task, text):
            finished = rng.random() < 0.7
            expected = score(task, text, completion, finished)
            assert TASKS[task].score(text, completion, finished).reward == expected, (text, completion)
            judgement = scorer_by_task(task).judge(text, completion, finished)
            assert (judgement.outcome, list(judgement.steps)) == judge(task, text, completion, finished), completion
            counts[int(expected)] += 1
    assert min(counts) > 300


@pytest.mark.parametrize("task", ["chain4", "walk12"])
@pytest.mark.parametrize("bad", ["", "3+4*2-7", "3+4*2-77=", "x+4*2-7=", "3/4*2-7=", "٣+4*2-7="])
def test_foreign_prompts(task: str, bad: str) -> None:
    assert TASKS[task].score(bad, "#7", True).reward == score(task, bad, "#7", True) == 0
    assert scorer_by_task(task).judge(bad, "7#7", True).steps == ()


@pytest.mark.parametrize("excess", [0, 1])
def test_longest_completion(excess: int) -> None:
    text = prompt("chain4", 5)
    completion = " " * (131_072 + excess - 5) + ideal("chain4", text)
    assert TASKS["chain4"].score(text, completion, True).reward == score("chain4", text, completion, True)
    assert score("chain4", text, completion, True) == 1 - excess


LINES = ["success", "0.5*success+2*outcome", "process+success", "success+0.2*process:clip", "success+3*process:delta"]


@pytest.mark.parametrize("line", [*LINES, "outcome+0.25*process:clip+delta+success"])
def test_rewards(line: str) -> None:
    rng = random.Random(3)
    run = RunReward(line, ["walk12"])
    for _ in range(20):
        text = prompt("walk12", rng.getrandbits(63))
        for said in completions(rng, "walk12", text):
            success = score("walk12", text, said, True)
            (got,) = run.rewards("walk12", text, [(said, True)]).values
            assert got == pytest.approx(reward(line, success, *judge("walk12", text, said, True)), abs=1e-9)


@pytest.mark.parametrize(
    "line",
    ["", "process", "success+success", "success:clip", "0*success", "1001*success", "1e2*success", "success+process:x"],
)
def test_unreadable_rewards(line: str) -> None:
    with pytest.raises(ConfigError):
        RunReward(line, ["chain4"])


def rows(header: str) -> list[list[str]]:
    lines = TEXT.splitlines()
    start = lines.index(header) + 2
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[start:end]]


def test_examples() -> None:
    prompts = rows("| task | seed | prompt |")
    assert {row[0] for row in prompts} == set(OPERATIONS)
    assert all(prompt(task, int(seed)) == text for task, seed, text in prompts)
    examples = rows("| completion | finished | score | outcome | step scores |")
    assert len(examples) >= 10
    for said, finished, *expected in examples:
        outcome, scores = judge("chain4", "3+4*2-7=", said, finished == "yes")
        steps = " ".join(f"{value:.0f}" for value in scores) or "–"
        assert [f"{score('chain4', '3+4*2-7=', said, finished == 'yes'):.0f}", f"{outcome:.0f}", steps] == expected


def test_every_task_has_a_section() -> None:
    assert all(f". {name}\n" in TEXT for name in (*TASKS, "countdown"))


# --- countdown, section 8 ------------------------------------------------------------------------------------------

COUNTDOWN_PROMPT = next(line for line in TEXT.splitlines() if line.startswith("    Make {}")).strip()
ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def countdown_prompt(seed: int) -> str:
    domain = b"p2prl/task/countdown/v1"

    def words() -> Iterator[int]:
        for n in itertools.count():
            head = bytes([len(domain)]) + domain + seed.to_bytes(8, "little")
            block = hashlib.sha256(head + n.to_bytes(8, "little")).digest()
            yield from (int.from_bytes(block[i : i + 4], "little") for i in range(0, 32, 4))

    drawn = words()
    while True:
        numbers = [1 + next(drawn) % 9, 10 + next(drawn) % 16, 10 + next(drawn) % 16]
        turn = next(drawn) % 3
        a, b, c = (Fraction(numbers[(turn + i) % 3]) for i in range(3))
        first, second = (ARITHMETIC["+-*/"[next(drawn) % 4]] for _ in range(2))
        right = next(drawn) % 2
        try:
            value = first(a, second(b, c)) if right else second(first(a, b), c)
        except ZeroDivisionError:
            continue
        if value.denominator == 1 and 10 <= value <= 99:
            return COUNTDOWN_PROMPT.format(value, *sorted(numbers))


def countdown_score(text: str, completion: str) -> float:
    target, *numbers = map(int, re.findall(r"[0-9]+", text))
    if "Answer:" not in completion:
        return 0.0
    answer = completion.split("Answer:")[-1]
    if len(answer) > 100:
        return 0.0
    for sign, plain in ("×*", "÷/", "−-"):
        answer = answer.replace(sign, plain)
    match = re.fullmatch(r"([0-9+\-*/() ]+?)(?: *= *([0-9]{1,2}))? *\.?", answer.strip(" \n"))
    if match is None or (match[2] and int(match[2]) != target):
        return 0.0
    symbols = re.findall(r"[0-9]+|\S", match[1])
    if any(len(symbol) > 2 for symbol in symbols):
        return 0.0
    kinds = "".join("n" if symbol.isdigit() else symbol for symbol in symbols)
    while (shorter := re.sub(r"n[-+*/]n|\(n\)", "n", kinds)) != kinds:
        kinds = shorter
    if kinds != "n" or sorted(int(symbol) for symbol in symbols if symbol.isdigit()) != sorted(numbers):
        return 0.0
    try:
        tree = ast.parse("".join(f"Fraction({int(s)})" if s.isdigit() else s for s in symbols), mode="eval")
        return float(reduced(tree.body) == target)
    except ZeroDivisionError:
        return 0.0


def reduced(node: ast.expr) -> Fraction:
    """The value of a parsed expression of fractions."""
    if isinstance(node, ast.Call):
        assert isinstance(node.args[0], ast.Constant)
        return Fraction(str(node.args[0].value))
    assert isinstance(node, ast.BinOp)
    sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(node.op)]
    result: Fraction = ARITHMETIC[sign](reduced(node.left), reduced(node.right))
    return result


def test_countdown_prompts() -> None:
    rng = random.Random(4)
    for seed in (0, 1, (1 << 63) - 1, *(rng.getrandbits(63) for _ in range(500))):
        assert Countdown().prompt(seed) == countdown_prompt(seed)
    examples = rows("| countdown, seed | prompt begins |")
    assert len(examples) == 3
    assert all(countdown_prompt(int(seed)).startswith(text + ":") for seed, text in examples)


def test_countdown_scores() -> None:
    rng = random.Random(5)
    counts = [0, 0]
    task = Countdown()
    for _ in range(400):
        text = countdown_prompt(rng.getrandbits(63))
        target, *numbers = map(int, re.findall(r"[0-9]+", text))
        for a, b, c in itertools.permutations(numbers):
            form = rng.choice(["({}{}{}){}{}", "{}{}({}{}{})", "{} {}{}{} {}"])
            answer = form.format(a, rng.choice("+-*/"), b, rng.choice("+-*/×÷−"), c) + rng.choice(
                ["", "", f" = {target}."]
            )
            if rng.random() < 0.2:
                place = rng.randrange(len(answer))
                answer = answer[:place] + rng.choice("0123456789+-*/()= .x") + answer[place + rng.randrange(2) :]
            completion = rng.choice(["Answer:", "so\nAnswer: ", "Answer: 1 Answer: "]) + answer
            expected = countdown_score(text, completion)
            assert task.score(text, completion, True).reward == expected, (text, completion)
            counts[int(expected)] += 1
    assert min(counts) > 30
