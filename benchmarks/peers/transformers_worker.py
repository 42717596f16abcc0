"""The worker of Hugging Face transformers: plain, looking up, or assisted."""

from typing import Any

import torch
import transformers

from benchmarks.peers import protocol


class Watch(transformers.StoppingCriteria):
    """Never stops; tells the clock how long the rows are after each round."""

    def __init__(self, clock: protocol.Clock, width: int) -> None:
        self.clock, self.width, self.rounds = clock, width, 0

    def __call__(self, input_ids, scores, **kwargs):
        """Notes the lengths; stops no row."""
        rows, length = input_ids.shape
        self.rounds += 1
        self.clock.saw([length - self.width] * rows)
        return torch.zeros(rows, dtype=torch.bool)


class Transformers:
    """Batches are padded on the left; what drafts takes one row only.

    The method `draft_model` is assisted generation; the option `assistant` says where
    the draft model lies. It drafts K tokens in every round, however sure it is.
    """

    def load(self, load: protocol.Load) -> dict[str, str]:
        """Reads the model in the dtype asked for."""
        if load.method not in ("none", "ngram", "draft_model"):
            raise ValueError(f"transformers has no method {load.method}")
        torch.set_num_threads(load.threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            load.model["huggingface"], dtype=getattr(torch, load.dtype)
        ).eval()
        config = self.model.generation_config
        self.pad = config.pad_token_id or 0
        config.pad_token_id = self.pad
        self.eos = config.eos_token_id
        config.do_sample = False
        self.drafting: dict[str, Any] = {}
        if load.method == "ngram":
            self.drafting = {"prompt_lookup_num_tokens": load.k}
        elif load.method == "draft_model":
            self.drafting = {"assistant_model": self._assistant(load)}
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    def _assistant(self, load: protocol.Load) -> Any:
        """The draft model, which always drafts as many tokens."""
        if "assistant" not in load.options:
            raise ValueError("assisted generation needs the option assistant, a folder")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            load.options["assistant"], dtype=getattr(torch, load.dtype)
        ).eval()
        config = model.generation_config
        config.num_assistant_tokens = load.k
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
        return model

    @torch.inference_mode()
    def group(self, prompts: list[list[int]], run: protocol.Run) -> protocol.Group:
        """One call of `generate`."""
        if self.drafting and len(prompts) > 1:
            raise ValueError("transformers drafts at batch 1 only")
        width = max(map(len, prompts))
        ids = torch.tensor([[self.pad] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        self.model.generation_config.eos_token_id = None if run.ignore_eos else self.eos
        clock = protocol.Clock(len(prompts))
        watch = Watch(clock, width)
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=run.max_tokens,
            stopping_criteria=[watch],
            **self.drafting,
        )
        tokens = output[:, width:].tolist()
        if not run.ignore_eos and self.eos is not None:
            ends = self.eos if isinstance(self.eos, list) else [self.eos]
            tokens = [_cut(row, ends) for row in tokens]
        emitted = sum(map(len, tokens))
        rounds = watch.rounds * len(prompts)
        return clock.group(tokens, {"rounds": rounds, "emitted": emitted})


def _cut(row: list[int], ends: list[int]) -> list[int]:
    for at, token in enumerate(row):
        if token in ends:
            return row[: at + 1]
    return row


if __name__ == "__main__":
    protocol.serve(Transformers())
