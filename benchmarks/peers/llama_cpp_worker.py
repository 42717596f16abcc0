"""The worker of llama.cpp: true batches by its low-level interface, or look-up.

Plain decoding hands `llama_decode` one token of every row at a time. Prompt look-up is
llama-cpp-python's own (`LlamaPromptLookupDecoding`), one row at a time.
"""

import ctypes
import importlib.metadata
from collections.abc import Sequence

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from benchmarks.peers import protocol

CHUNK = 2048


@llama_cpp.llama_log_callback
def _quiet(level, text, user):
    pass


class LlamaCpp:
    """Caches in float32 for float32 files, else in its default of float16."""

    def load(self, load: protocol.Load) -> dict[str, str]:
        """Maps the file of the dtype."""
        if load.method not in ("none", "ngram"):
            raise ValueError(f"llama.cpp has no method {load.method} here")
        path = load.model["gguf"][load.dtype]
        exact = load.dtype == "float32"
        self.kind = llama_cpp.GGML_TYPE_F32 if exact else llama_cpp.GGML_TYPE_F16
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        if load.method == "ngram":
            self.rows: Rows | Lookup = Lookup(path, load, self.kind)
        else:
            self.rows = Rows(path, load, self.kind)
        return {
            "llama-cpp-python": importlib.metadata.version("llama-cpp-python"),
            "build": llama_cpp.llama_print_system_info().decode(),
        }

    def group(self, prompts: list[list[int]], run: protocol.Run) -> protocol.Group:
        """Decodes prompts that run together."""
        return self.rows.group(prompts, run)


class Rows:
    """A context of as many sequences as the largest batch has rows."""

    def __init__(self, path: str, load: protocol.Load, kind: int) -> None:
        settings = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), settings)
        if not self.model:
            raise ValueError(f"llama.cpp could not read {path}")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.eos = llama_cpp.llama_vocab_eos(vocabulary)
        self.load, self.kind = load, kind
        self.contexts: dict[int, int] = {}
        self.batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)

    def context(self, rows: int) -> int:
        """A context for exactly so many rows, made once."""
        if rows not in self.contexts:
            settings = llama_cpp.llama_context_default_params()
            settings.n_ctx = rows * self.load.max_model_len
            settings.n_batch = CHUNK
            settings.n_seq_max = rows
            settings.n_threads = settings.n_threads_batch = self.load.threads
            settings.type_k = settings.type_v = self.kind
            settings.no_perf = True
            for name, value in self.load.options.items():
                setattr(settings, name, value)
            self.contexts[rows] = llama_cpp.llama_init_from_model(self.model, settings)
            if not self.contexts[rows]:
                raise ValueError(f"llama.cpp could not make a context of {rows} rows")
        return self.contexts[rows]

    def group(self, prompts: list[list[int]], run: protocol.Run) -> protocol.Group:
        """Prefills row by row, then steps all rows together."""
        context = self.context(len(prompts))
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        clock = protocol.Clock(len(prompts))
        tokens: list[list[int]] = []
        for row, prompt in enumerate(prompts):
            for at in range(0, len(prompt), CHUNK):
                chunk = prompt[at : at + CHUNK]
                last = at + len(chunk) == len(prompt)
                places = range(at, at + len(chunk))
                self._decode(context, chunk, places, [row] * len(chunk), last=last)
            tokens.append([int(self._best(context, 1)[0])])
            clock.saw([1] * len(tokens) + [0] * (len(prompts) - len(tokens)))
        rows = list(range(len(prompts)))
        while True:
            rows = [
                row
                for row in rows
                if len(tokens[row]) < run.max_tokens
                and (run.ignore_eos or tokens[row][-1] != self.eos)
            ]
            if not rows:
                return clock.group(tokens)
            newest = [tokens[row][-1] for row in rows]
            places = [len(prompts[row]) + len(tokens[row]) - 1 for row in rows]
            self._decode(context, newest, places, rows)
            for row, best in zip(rows, self._best(context, len(rows)), strict=True):
                tokens[row].append(int(best))
            clock.saw(map(len, tokens))

    def _decode(
        self,
        context: int,
        tokens: Sequence[int],
        places: Sequence[int],
        rows: Sequence[int],
        *,
        last: bool = True,
    ) -> None:
        batch, count = self.batch, len(tokens)
        batch.n_tokens = count
        prefill = len(set(rows)) < count
        for i in range(count):
            batch.token[i] = tokens[i]
            batch.pos[i] = places[i]
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = rows[i]
            batch.logits[i] = not prefill or (last and i == count - 1)
        status = llama_cpp.llama_decode(context, batch)
        if status:
            raise RuntimeError(f"llama_decode ended with status {status}")

    def _best(self, context: int, count: int) -> np.ndarray:
        logits = llama_cpp.llama_get_logits(context)
        return np.ctypeslib.as_array(logits, (count, self.size)).argmax(-1)


class Lookup:
    """llama-cpp-python's generator with its prompt look-up drafter."""

    def __init__(self, path: str, load: protocol.Load, kind: int) -> None:
        self.llama = llama_cpp.Llama(
            path,
            n_ctx=load.max_model_len,
            n_batch=CHUNK,
            n_threads=load.threads,
            n_threads_batch=load.threads,
            type_k=kind,
            type_v=kind,
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=load.k),
            verbose=False,
            **load.options,
        )
        self.eos = self.llama.token_eos()

    def group(self, prompts: list[list[int]], run: protocol.Run) -> protocol.Group:
        """One row at a time; a group of more is refused."""
        if len(prompts) > 1:
            raise ValueError("llama-cpp-python looks prompts up at batch 1 only")
        self.llama.reset()
        clock = protocol.Clock(1)
        tokens: list[int] = []
        for token in self.llama.generate(prompts[0], temp=0.0, repeat_penalty=1.0):
            tokens.append(token)
            clock.saw([len(tokens)])
            if len(tokens) == run.max_tokens:
                break
            if not run.ignore_eos and token == self.eos:
                break
        return clock.group([tokens])


if __name__ == "__main__":
    protocol.serve(LlamaCpp())
