"""Write word problems in the shape of GSM8K as JSON lines: `question`, and `answer` with its steps and `#### n`.

    python scripts/make_word_problems.py train.jsonl --rows 2000
    python scripts/make_word_problems.py held_out.jsonl --rows 256 --skip 2000

Rows are numbered, and no question comes twice, so that `--skip` gives rows that another file does not have.
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from pathlib import Path

from p2prl.config.preset_materials import write_rows
from p2prl.tasks.word_problems.problems import word_problem_rows


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--skip", type=int, default=0, help="rows to leave out at the start")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other rows")
    arguments = parser.parse_args()
    write_rows(
        arguments.path, islice(word_problem_rows(arguments.seed), arguments.skip, arguments.skip + arguments.rows)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
