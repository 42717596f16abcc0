"""Trees of several sizes: measured, chosen among, and served without compiling."""

import json

import pytest

import jspec
from jspec import checkpoint
from jspec.control import CostTable, Goodput, Tree
from jspec.server.calibrate import Grid, calibrate, export
from jspec.server.schedule import make_controller
from jspec.testing import compilations
from tests import serving
from tests.drafters.eagles import eagle, weights_of

GRID = Grid(max_batch=1, ks=(1, 3), nodes=(3, 8), contexts=(16,), repeats=1)
SIZES = (Tree(1, 3), Tree(1, 8), Tree(3, 8))


def test_a_grid_measures_every_k_with_every_tree_that_holds_it():
    assert GRID.sizes == SIZES
    assert Grid(ks=(1, 3)).sizes == (1, 3)
    with pytest.raises(ValueError, match="nodes of a tree 3 is less than 4"):
        Grid(ks=(3,), nodes=(3,))
    with pytest.raises(ValueError, match="K = 8 needs a tree of 9 nodes"):
        Grid(ks=(2, 8), nodes=(6,))


def test_a_method_without_such_trees_is_refused_by_name(servers, tmp_path):
    with pytest.raises(ValueError, match="'ngram' with these options drafts no trees"):
        calibrate(
            tmp_path / "costs.json", servers.paths["target"], method="ngram", grid=GRID
        )


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    folder = tmp_path_factory.mktemp("head")
    drafter = eagle(config={"vocab_size": serving.TOKENS + 5})
    config = drafter.config.to_json()
    checkpoint.save_drafter(folder, "eagle", config, weights_of(drafter), source={})
    return folder


@pytest.mark.slow
def test_trees_are_measured_and_served_without_compiling(servers, head, tmp_path):
    output, options = tmp_path / "costs.json", {"tree_width": 3}
    with serving.quick_compiler(servers.folder / "xla"):
        found = calibrate(
            output,
            servers.paths["target"],
            drafter=head,
            method_options=options,
            grid=GRID,
        )
        content = json.loads(output.read_text())
        assert content["complete"]
        assert not {"schedule", "best", "acceptance"} & set(content)
        assert content["made"]["options"] == {"tree_nodes": 8, "tree_width": 3}
        assert export(found, output) == []
        costs = CostTable.load(output)
        assert costs.drafted == SIZES == found.costs.drafted
        assert Goodput(costs).palette == (0, *SIZES)
        limits = {"max_batch": 1, "max_model_len": 64, "max_k": 3, "batches": (1,)}
        for kind in ("table", "adaptive", "budget"):
            with pytest.raises(ValueError, match="goodput:PATH alone chooses trees"):
                make_controller(f"{kind}:{output}", **limits)
        server = jspec.serve(
            servers.paths["target"],
            drafter=head,
            num_speculative_tokens=3,
            schedule=f"goodput:{output}",
            method_options=options,
            max_batch=1,
            max_model_len=96,
            page_size=4,
            compilation_cache=False,
        )
    with server:
        with compilations() as compiled:
            [done] = server.generate("a a a", serving.greedy(60))
            metrics = serving.settled(server)
        assert compiled == []
        assert "round K=3/8 batch=1" in metrics["compile_seconds"]
    assert done.token_ids == servers.plain("a a a", serving.greedy(60)).token_ids
    drafting = sum(metrics["rounds_by_tree_nodes"].values())
    rounds = metrics["rounds_by_num_speculative_tokens"]
    assert drafting == sum(count for k, count in rounds.items() if k) > 0
