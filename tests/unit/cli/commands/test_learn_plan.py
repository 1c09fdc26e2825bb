"""`learn --ranks` and `--plan`: one names what the other does, and both at once are refused."""

from __future__ import annotations

import pytest

from p2prl.cli.commands.learn import chosen_plan
from p2prl.errors import ConfigError


def test_ranks_are_the_short_form_of_a_plan() -> None:
    assert chosen_plan(None, None) is None, "run.toml's"
    assert chosen_plan(4, None) == "dp4"
    assert chosen_plan(None, "dp2pp2") == "dp2pp2"


def test_two_plans_are_refused() -> None:
    with pytest.raises(ConfigError, match="--ranks 2 and --plan pp2 each name a plan"):
        chosen_plan(2, "pp2")
