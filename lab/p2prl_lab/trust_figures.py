"""Draw docs/images/trust_power.svg and docs/images/trust_roc.svg from the rows in docs/benchmarks/trust.json.

python -m p2prl_lab.trust_figures                      # from the committed rows
python -m p2prl_lab.trust_figures runs/bench-trust     # take over the rows of a run of `p2prl bench trust` first
python -m p2prl_lab.trust_figures attacks/ floods/     # or of several, each of some parts
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from p2prl_lab.bench.trust.benchmark import TABLES
from p2prl_lab.bench.trust.charts import draw_charts

ROOT = Path(__file__).parents[2]
ROWS, IMAGES = ROOT / "docs" / "benchmarks" / "trust.json", ROOT / "docs" / "images"
_DIGITS = 4


def main() -> None:
    """Take over rows, if asked, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of p2prl bench trust")
    runs = parser.parse_args().runs
    if runs:
        documents = [json.loads((run / "trust.json").read_text()) for run in runs]
        rows = {table: [_rounded(row) for each in documents for row in each[table]] for table in TABLES}
        lines = [f'"{table}": [\n{_lines(rows[table])}]' for table in TABLES]
        ROWS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    drawn = draw_charts(json.loads(ROWS.read_text()), IMAGES)
    print("\n".join(str(path.relative_to(ROOT)) for path in drawn))


def _lines(rows: list[dict[str, Any]]) -> str:
    return ",\n".join(json.dumps(row) for row in rows) + "\n" if rows else ""


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, _DIGITS) if isinstance(value, float) else value for key, value in row.items()}


if __name__ == "__main__":
    main()
