"""The zoo run with servers of a tiny target."""

import pytest

from benchmarks.zoo import command, result
from benchmarks.zoo.journal import Journal
from benchmarks.zoo.plan import Config, contestants
from benchmarks.zoo.run import run
from tests.serving import quick_compiler, write_checkpoint


@pytest.mark.slow
def test_a_tiny_zoo_is_measured_and_greedy_text_is_plain_decodings(tmp_path):
    target = write_checkpoint(tmp_path / "target")
    write_checkpoint(tmp_path / "drafters" / "draft_model" / "drafter", noise=0.3)
    config = Config(
        target=str(target),
        dtype="float32",
        kinds=("qa",),
        texts=1,
        ks=(2,),
        temperatures=(0.0, 1.0),
        batches=(1,),
        passes=1,
        max_tokens=12,
    )
    shelf = command.shelf(config.target, tmp_path / "drafters")
    wanted = ["draft_model", "transformers"]
    chosen = contestants(wanted, shelf, target=config.target, peers=False)
    journal = Journal(tmp_path / "zoo.cells.jsonl", config.fixed)
    with quick_compiler(tmp_path / "xla"):
        assert run(config, chosen, journal)
    found = result.collect(journal, chosen)
    greedy = [cell for cell in found["cells"] if cell["temperature"] == 0]
    assert [cell["equal"] for cell in greedy] == [[True]]
    [row] = greedy[0]["rows"]
    assert row["tokens"] <= 12 and row["rounds"] < row["tokens"]
    assert row["drafted"][0] >= row["accepted"][0] > 0
    [cost] = found["costs"]
    assert {(batch, k) for batch, k, _ in cost["rounds"]} == {(1, 0), (1, 2)}
    [refused] = found["refused"]
    assert "transformers runs the target" in refused["why"]
    command.write(found, tmp_path)
