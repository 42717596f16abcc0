"""A worker without an engine: its tokens count on from the prompt's last one."""

import sys
import time

from benchmarks.peers import protocol


class Counting:
    """Emits `last + 1, last + 2, ...`; its model names what it should refuse."""

    def load(self, load: protocol.Load) -> dict[str, str]:
        """Refuses a method called `refused`."""
        if load.method == "refused":
            raise ValueError("no such method here")
        self.method = load.method
        print("engines print on stdout")
        return {"counting": "1"}

    def group(self, prompts: list[list[int]], run: protocol.Run) -> protocol.Group:
        """One round a token; two rows at most when the method is `narrow`."""
        if self.method == "narrow" and len(prompts) > 2:
            raise ValueError("two rows at most")
        clock = protocol.Clock(len(prompts))
        for round_ in range(1, run.max_tokens + 1):
            time.sleep(0.001)
            clock.saw([round_] * len(prompts))
        tokens = [[p[-1] + i for i in range(1, run.max_tokens + 1)] for p in prompts]
        rounds = run.max_tokens * len(prompts)
        return clock.group(tokens, {"rounds": rounds, "emitted": rounds})


if __name__ == "__main__":
    if "--die" in sys.argv:
        sys.exit(3)
    protocol.serve(Counting())
