"""What `/metrics` shows: the engine's counters and the times that readers waited."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

__all__ = ["Metrics"]

LABELS: Mapping[str, str] = MappingProxyType(
    {
        "requests": "finish_reason",
        "rounds_by_num_speculative_tokens": "num_speculative_tokens",
        "rounds_by_tree_nodes": "nodes",
        "rounds_by_draft_budget": "drafts",
        "start_seconds": "phase",
        "compile_seconds": "executable",
    }
)
"""What the keys of a mapping are."""

GROWING = frozenset(
    {
        "requests",
        "rounds",
        "rounds_by_num_speculative_tokens",
        "rounds_by_tree_nodes",
        "rounds_by_draft_budget",
        "num_speculative_tokens_switches",
        "drafter_catch_ups",
        "emitted_tokens",
        "drafted_tokens",
        "accepted_tokens",
        "prompt_tokens",
        "cached_prompt_tokens",
        "dispatch_seconds",
        "wait_seconds",
        "host_seconds",
    }
)
"""Counters; everything else may fall again."""

FIRST = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5, 10, 20, 60)
EACH = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.5, 1)
WHOLE = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


class _Engine(Collector):
    """`Server.metrics()` as Prometheus metrics, whatever it holds."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known when they are read."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Reads once."""
        for name, value in self._read().items():
            kind = CounterMetricFamily if name in GROWING else GaugeMetricFamily
            about = f"{name.replace('_', ' ')} of the engine"
            if isinstance(value, Mapping):
                label = LABELS.get(name, "name")
                family = kind(f"jspec_{name}", about, labels=[label])
                for key, number in value.items():
                    family.add_metric([str(key)], number)
            elif isinstance(value, int | float):
                family = kind(f"jspec_{name}", about, value=value)
            else:
                continue
            yield family


class _Lossy(CollectorRegistry):
    """Says of every number that drafts were kept by a rule that is lossy."""

    def __init__(self, verification: str) -> None:
        super().__init__()
        self._label = {"verification": f"{verification} (lossy)"}

    def collect(self) -> Iterator[Metric]:
        """What is registered, each sample with one more label."""
        for metric in super().collect():
            samples = [
                sample._replace(labels=sample.labels | self._label)
                for sample in metric.samples
            ]
            copy = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            copy.samples = samples
            yield copy


class Metrics:
    """A registry of its own, so that several servers can live in one process.

    Attributes:
      first: seconds from a request's arrival to its first token.
      each: seconds between tokens after the first, a request's mean.
      whole: seconds from a request's arrival to its end.
      responses: HTTP responses, by path and status.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        """Starts at zero.

        Args:
          read: the engine's counters.
        """
        now = read()
        exact = not now.get("lossy")
        self._registry = CollectorRegistry() if exact else _Lossy(now["verification"])
        self._registry.register(_Engine(read))
        self.first = Histogram(
            "jspec_time_to_first_token_seconds",
            "from a request's arrival to its first token",
            buckets=FIRST,
            registry=self._registry,
        )
        self.each = Histogram(
            "jspec_time_per_output_token_seconds",
            "mean time of a request's tokens after its first",
            buckets=EACH,
            registry=self._registry,
        )
        self.whole = Histogram(
            "jspec_request_seconds",
            "from a request's arrival to its end",
            buckets=WHOLE,
            registry=self._registry,
        )
        self.responses = Counter(
            "jspec_http_responses",
            "HTTP responses",
            ["path", "status"],
            registry=self._registry,
        )

    def text(self, accept: str) -> tuple[bytes, str]:
        """Everything, in the format that was asked for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
