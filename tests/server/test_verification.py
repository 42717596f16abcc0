"""A server's verification: exact ones change no greedy text, lossy ones say so."""

import dataclasses
import logging

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

import jspec
from jspec.drafters import METHODS
from jspec.drafters.ngram import NGram
from jspec.server.http_metrics import Metrics
from tests.serving import PROMPTS, greedy, settled

SMALL = {"max_batch": 1, "k": 2}


def test_an_exact_verification_leaves_greedy_text_alone_and_says_it_is_exact(servers):
    with servers.new("near", verification="block", **SMALL) as server:
        done = server.generate(list(PROMPTS), greedy(24))
        shown, _ = Metrics(server.metrics).text("")
        assert (server.verification, server.lossy) == ("block", False)
        assert server.metrics()["lossy"] is False
    for prompt, ours in zip(PROMPTS, done, strict=True):
        assert ours.token_ids == servers.plain(prompt, greedy(24)).token_ids
        assert not ours.speculation.lossy
    assert sum(ours.speculation.accepted for ours in done) > 0
    assert "jspec_lossy 0.0" in shown.decode()
    assert "verification=" not in shown.decode()


def test_a_lossy_run_says_so_in_results_metrics_and_logs(servers, caplog):
    with (
        caplog.at_level(logging.WARNING, "jspec"),
        servers.new(
            "near", verification="synthetic:rates=(1.0,1.0)", **SMALL
        ) as server,
    ):
        params = greedy(24, temperature=0.7, seed=3)
        done = server.generate(PROMPTS[0], params)[0]
        found = settled(server)
        shown, _ = Metrics(server.metrics).text("")
    assert done.speculation.lossy
    assert done.speculation.accepted == done.speculation.drafted == 16
    assert found["lossy"] and found["verification"] == "synthetic:rates=(1.0, 1.0)"
    assert server.settings["lossy"]
    assert [record.getMessage() for record in caplog.records] == [
        "verification synthetic:rates=(1.0, 1.0) is lossy: texts need not follow the "
        "target's law"
    ]
    families = list(text_string_to_metric_families(shown.decode()))
    assert len(families) > 20
    for family in families:
        for sample in family.samples:
            label = sample.labels["verification"]
            assert label == "synthetic:rates=(1.0, 1.0) (lossy)"


def test_methods_lists_pairs_that_are_not_supported(monkeypatch):
    class Forest(NGram):
        about = dataclasses.replace(NGram.about, topology="tree", q=("sparse",))
        branching = True

    listed = {**METHODS, "forest": Forest}
    monkeypatch.setattr("jspec.server.methods.METHODS", listed)
    refused = {method.name: method.refused for method in jspec.methods()}
    pairs = [line for line in refused["forest"] if line.startswith("verification")]
    assert pairs == [
        f"verification {name!r} judges chains, and method 'forest' drafts trees: use "
        f"'standard'"
        for name in ("block", "synthetic", "fly")
    ]
    assert not [line for line in refused["forest"] if "draft_sampling" in line]
    assert [line for line in refused["ngram"] if "draft_sampling" in line]
    for name in ("eagle", "eagle3", "medusa"):
        pairs = [line for line in refused[name] if line.startswith("verification")]
        assert pairs == [
            f"verification {rule!r} is refused as a tree: it judges chains"
            for rule in ("block", "synthetic", "fly")
        ]
    assert not [line for line in refused["ngram"] if line.startswith("verification")]
    assert any("but for 'standard'" in line for line in refused["none"])
