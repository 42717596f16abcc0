"""The worker of Hugging Face transformers: `generate`, plain or with prompt look-up."""

import torch
import transformers

from benchmarks.peers import protocol


class Watch(transformers.StoppingCriteria):
    """Never stops; tells the clock how long the rows are after each round."""

    def __init__(self, clock: protocol.Clock, width: int) -> None:
        self.clock, self.width = clock, width

    def __call__(self, input_ids, scores, **kwargs):
        """Notes the lengths; stops no row."""
        rows, length = input_ids.shape
        self.clock.saw([length - self.width] * rows)
        return torch.zeros(rows, dtype=torch.bool)


class Transformers:
    """Batches are padded on the left; prompt look-up takes one row only."""

    def load(self, load: protocol.Load) -> dict[str, str]:
        """Reads the model in the dtype asked for."""
        if load.method not in ("none", "ngram"):
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
        self.lookup = load.k if load.method == "ngram" else None
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    @torch.inference_mode()
    def group(self, prompts: list[list[int]], run: protocol.Run) -> protocol.Group:
        """One call of `generate`."""
        if self.lookup and len(prompts) > 1:
            raise ValueError("transformers looks prompts up at batch 1 only")
        width = max(map(len, prompts))
        ids = torch.tensor([[self.pad] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        self.model.generation_config.eos_token_id = None if run.ignore_eos else self.eos
        clock = protocol.Clock(len(prompts))
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=run.max_tokens,
            stopping_criteria=[Watch(clock, width)],
            **({"prompt_lookup_num_tokens": self.lookup} if self.lookup else {}),
        )
        tokens = output[:, width:].tolist()
        if not run.ignore_eos and self.eos is not None:
            ends = self.eos if isinstance(self.eos, list) else [self.eos]
            tokens = [_cut(row, ends) for row in tokens]
        return clock.group(tokens)


def _cut(row: list[int], ends: list[int]) -> list[int]:
    for at, token in enumerate(row):
        if token in ends:
            return row[: at + 1]
    return row


if __name__ == "__main__":
    protocol.serve(Transformers())
