"""A run over sockets with a tiny random model of each architecture: `init`, `learn`, two `join`, `export`, and load it.

    python -m p2prl_lab.model_families                      # all that are tested by name
    python -m p2prl_lab.model_families mixtral gpt_oss      # these

Prints a JSON line for each: groups verified and rejected, updates, and how far the logits of the exported model, loaded
by transformers, are from those of the checkpoint. Exits 1 unless each has trained, none of its groups was rejected, and
the two are equal up to rounding.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from p2prl.learner.training.checkpoints import newest_checkpoint
from p2prl.models.base_model.architectures import ARCHITECTURES
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.progress_lines import say
from p2prl_lab.testing.small_architectures import small_model
from p2prl_lab.testing.swarm_processes import LISTEN, SwarmProcesses, command, status_of, wait_until

_UPDATES = 3
_JOINS = 2
_INIT_S, _RUN_S = 300.0, 300.0
_LARGEST_DIFFERENCE = 1e-3
"""Of logits, relative to their spread."""

_SETTINGS = {"groups_per_update": 4, "checkpoint_every": 1}


def main() -> int:
    """Run each, and print its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="MODEL_TYPE", help="default: all that are tested")
    parser.add_argument("--out", type=Path, default=None, help="folder of the runs, with their logs")
    arguments = parser.parse_args()
    folder = arguments.out or Path(tempfile.mkdtemp(prefix="model-families-"))
    passed = True
    for kind in arguments.families or ARCHITECTURES:
        report = _run(kind, folder / kind)
        passed &= bool(report["passed"])
        print(json.dumps(report, sort_keys=True), flush=True)
    say(f"Kept in {folder}")
    return 0 if passed else 1


def _run(kind: str, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True)
    began = time.monotonic()
    _write_model(kind, folder / "model")
    rows = [{"prompt": f"{first}+{second}=", "answer": str(first)} for first in range(10) for second in range(10)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    swarm = SwarmProcesses(folder, forks=True)
    with swarm.running():
        made = command(
            *("init", "run", "--in", str(folder), "--model", str(folder / "model"), "--probe", "off"),
            *("--data", f"sums={folder / 'rows.jsonl'}", "--scorer", "contains:truncated=yes"),
            *("--max-new-tokens", "8", "--group-size", "4", "--staleness", "64", "--publish-every", "1"),
            environment=swarm.environment(),
            timeout_s=_INIT_S,
        )
        if made.returncode:
            return {"family": kind, "passed": False, "refused": made.stderr.strip()[-500:]}
        run = folder / "run"
        _set(run / "run.toml", _SETTINGS)
        learner = swarm.start("learner", "learn", str(run), *LISTEN, "--updates", str(_UPDATES))
        wait_until(lambda: (run / "link").exists() or not learner.is_alive, seconds=_RUN_S, what="the join link")
        assert learner.is_alive, learner.log[-2000:]
        link = (run / "link").read_text().strip()
        homes = [folder / f"home-{number}" for number in range(_JOINS)]
        joins = [
            swarm.start(f"join-{number}", "join", link, *LISTEN, "--threads", "1", home=home)
            for number, home in enumerate(homes)
        ]
        status = learner.wait(_RUN_S)
        for join in joins:
            join.wait(_RUN_S)
        groups = [status_of(home).get("groups", {}) for home in homes]
        exported = command(
            *("export", str(run), "--dtype", "float32", "--out", str(folder / "export"), "--json"),
            environment=swarm.environment(),
            timeout_s=_INIT_S,
        )
    assert exported.returncode == 0, exported.stderr
    newest = newest_checkpoint(run / "checkpoints")
    assert newest is not None
    difference = _difference(folder / "export", newest)
    metrics = (run / "metrics.jsonl").read_text().splitlines()
    rejected = sum(each.get("rejected", 0) for each in groups)
    verified = [each.get("verified", 0) for each in groups]
    return {
        "family": kind,
        "updates": len(metrics),
        "gradient_norms": [round(json.loads(line)["gradient_norm"], 4) for line in metrics],
        "verified": verified,
        "rejected": rejected,
        "logit_difference": difference,
        "seconds": round(time.monotonic() - began),
        "passed": status == 0 and not rejected and min(verified) > 0 and difference <= _LARGEST_DIFFERENCE,
    }


def _write_model(kind: str, directory: Path) -> None:
    small_model(kind).save_pretrained(directory)
    tiny_model("chain4").tokenizer.save_pretrained(directory)


def _set(path: Path, settings: dict[str, int]) -> None:
    """Replace settings of a run.toml, each on a line of its own."""
    lines = path.read_text().splitlines()
    for name, value in settings.items():
        (place,) = (number for number, line in enumerate(lines) if line.startswith(f"{name} ="))
        lines[place] = f"{name} = {value}"
    path.write_text("\n".join(lines) + "\n")


def _difference(exported: Path, checkpoint: Path) -> float:
    """Root mean square difference of the logits of two models, relative to their spread."""
    made = []
    for directory in (exported, checkpoint):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, output_loading_info=True, local_files_only=True
        )
        assert not report["missing_keys"], report
        assert not report["unexpected_keys"], report
        with torch.no_grad():
            made.append(model.eval()(input_ids=torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])).logits)
    one, other = made
    return float((one - other).square().mean().sqrt() / other.std())


if __name__ == "__main__":
    sys.exit(main())
