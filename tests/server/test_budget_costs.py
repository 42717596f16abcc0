"""Several budgets of verified drafts: measured, refused unmeasured, and served."""

import json

import pytest

from jspec.control import CostTable
from jspec.server.calibrate import Grid, calibrate
from jspec.testing import compilations
from tests import serving

OPTIONS = {"ragged": "compact", "ragged_budget": [1, 2]}
GRID = Grid(max_batch=1, ks=(2,), contexts=(16,), repeats=1)


@pytest.mark.slow
def test_rounds_of_every_budget_are_measured_and_chosen_among(servers, tmp_path):
    output = tmp_path / "costs.json"
    with serving.quick_compiler(servers.folder / "xla"):
        calibrate(
            output,
            servers.paths["target"],
            drafter=servers.paths["near"],
            method_options=OPTIONS,
            grid=GRID,
        )
    content = json.loads(output.read_text())
    timed = {(one["batch"], one["size"], one["drafts"]) for one in content["packed"]}
    assert timed == {(1, 2, 1), (1, 2, 2)}
    assert {one["drafts"] for one in content["rounds"]} == {None}
    assert CostTable.load(output).samples["packed"]
    kind = {"k": 2, "max_batch": 1, "method_options": OPTIONS}
    with (
        servers.new("near", schedule=f"budget:{output}", **kind) as server,
        compilations() as compiled,
    ):
        [done] = server.generate("a a a", serving.greedy(40))
        found = serving.settled(server)
    assert compiled == []
    assert done.token_ids == servers.plain("a a a", serving.greedy(40)).token_ids
    rounds = found["rounds_by_num_speculative_tokens"]
    assert sum(found["rounds_by_draft_budget"].values()) == rounds.get(2, 0) > 0
    assert found["drafted_tokens"] <= 2 * rounds[2]
