"""The worker of jspec itself, by its public interface alone."""

import importlib.metadata
from pathlib import Path
from typing import Any

import jax

import jspec
from benchmarks.peers import protocol


class Jspec:
    """Each row's chunks are read by a thread of its own, which sleeps between them.

    `draft_model` without a drafter drafts with the target itself.
    """

    def load(self, load: protocol.Load) -> dict[str, str]:
        """Serves the target; blocks until everything is compiled."""
        settings: dict[str, Any] = {"prefix_cache": False} | load.options
        target = Path(settings.pop("target", load.model["huggingface"]))
        if load.method == "draft_model":
            settings.setdefault("drafter", target)
        self.server = jspec.serve(
            target,
            method=load.method,
            num_speculative_tokens=load.k or None,
            dtype=load.dtype,
            max_batch=load.max_batch,
            max_model_len=load.max_model_len,
            **settings,
        )
        return {
            name: importlib.metadata.version(name) for name in ("jspec", "jax", "flax")
        } | {"device": jax.devices()[0].device_kind}

    def group(self, prompts: list[list[int]], run: protocol.Run) -> protocol.Group:
        """Streams all prompts at once."""
        params = jspec.SamplingParams(
            temperature=0.0, max_tokens=run.max_tokens, ignore_eos=run.ignore_eos
        )
        before = _numbers(self.server.metrics())
        clock = protocol.Clock(len(prompts))
        handles = [self.server.submit(prompt, params) for prompt in prompts]
        protocol.watch(handles, clock)
        done = [handle.result() for handle in handles]
        after = _numbers(self.server.metrics())
        counters = {
            "rounds": sum(one.speculation.rounds for one in done),
            "drafted": sum(one.speculation.drafted for one in done),
            "accepted": sum(one.speculation.accepted for one in done),
            "emitted": sum(len(one.token_ids) for one in done),
        } | {
            f"metrics.{name}": value - before.get(name, 0)
            for name, value in after.items()
        }
        return clock.group([one.token_ids for one in done], counters)


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


if __name__ == "__main__":
    protocol.serve(Jspec())
