"""A tiny checkpoint on disk with a tokenizer of its own, and servers of it."""

import contextlib
import json
import time
from pathlib import Path
from typing import ClassVar

import jax
from jax.experimental.compilation_cache import compilation_cache
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import jspec
from jspec import checkpoint
from jspec.models import random_weights
from jspec.server.local import serve
from jspec.testing import tiny_config

SPECIAL = ("<s>", "</s>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
MERGES = (("h", "e"), ("l", "l"), ("Ġ", "w"))
TOKENS = 256 + len(MERGES) + len(SPECIAL)
EOS = 256 + len(MERGES) + 1

PROMPTS = (
    "the cat and the cat and the",
    "a a a",
    "héllo wörld 🙂!",
    "q",
    "def f(x):\n    return x\n\ndef g(x):",
    "zz",
)


def write_tokenizer(folder, swap=None):
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, MERGES)]
    if swap:
        i, j = swap
        tokens[i], tokens[j] = tokens[j], tokens[i]
    backend = Tokenizer(
        models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=list(MERGES))
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    return {
        "tokenizer.json": backend.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }


def write_checkpoint(folder: Path, seed=0, swap=None, noise=0.0, **changes):
    """A random model; one with a little noise drafts well for one without."""
    changes = {
        "vocab_size": TOKENS + 5,
        "token_count": TOKENS,
        "num_layers": 1,
        "eos_token_ids": (EOS,),
        "max_position": 512,
    } | changes
    config = tiny_config(**changes)
    weights = jax.device_get(random_weights(config, seed))
    other = jax.device_get(random_weights(config, seed + 1))
    weights = {name: a + noise * other[name] for name, a in weights.items()}
    checkpoint.save(
        folder,
        config,
        weights,
        source={"made_by": "tests"},
        tokenizer_files=write_tokenizer(folder, swap),
    )
    return folder


@contextlib.contextmanager
def quick_compiler(folder):
    """Programs are compiled without optimisation, and those alike only once."""
    wanted = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    jax.config.update("jax_disable_most_optimizations", True)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        jax.config.update("jax_disable_most_optimizations", False)
        compilation_cache.reset_cache()


class Servers:
    """Tiny servers, made when first asked for, shared by all tests."""

    KINDS: ClassVar = {
        "plain": {"method": "none"},
        "ngram": {"method": "ngram", "method_options": {"shortest": 1}},
        "suffix": {
            "method": "suffix",
            "method_options": {"min_token_prob": 0.0, "max_spec_factor": 2.0},
            "max_batch": 2,
            "k": 8,
        },
        "self": {"method": "draft_model", "drafter": "target"},
        "near": {"method": "draft_model", "drafter": "near"},
        "self 1": {
            "method": "draft_model",
            "drafter": "target",
            "max_batch": 1,
            "k": 1,
        },
        "ngram 1": {
            "method": "ngram",
            "method_options": {"shortest": 1},
            "max_batch": 1,
            "k": 1,
        },
        "short plain": {"method": "none", "max_model_len": 32, "max_batch": 2},
        "short self": {
            "method": "draft_model",
            "drafter": "target",
            "max_model_len": 32,
            "max_batch": 2,
            "k": 8,
        },
        "single": {"method": "none", "max_model_len": 64, "max_batch": 1},
    }

    def __init__(self, folder):
        self.folder = folder
        self.paths = {
            "target": write_checkpoint(folder / "target"),
            "near": write_checkpoint(folder / "near", noise=0.3),
        }
        self._running = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self._running.values():
            server.close()

    def __getitem__(self, kind):
        if kind not in self._running:
            self._running[kind] = self.new(kind)
        return self._running[kind]

    def new(self, kind, **changes):
        """Another server of a kind, for the caller to close."""
        options = {
            "max_batch": 4,
            "max_model_len": 128,
            "page_size": 4,
            "k": 4,
            "compilation_cache": False,
        }
        options |= self.KINDS[kind] | changes
        if options.get("drafter"):
            options["drafter"] = self.paths[options["drafter"]]
        k = options.pop("k")
        if options["method"] == "none":
            k = None
        with quick_compiler(self.folder / "xla"):
            return serve(self.paths["target"], num_speculative_tokens=k, **options)

    def plain(self, prompt, params):
        """What plain decoding answers, alone."""
        [done] = self["plain"].generate(prompt, params)
        return done


def greedy(max_tokens=24, **changes):
    return jspec.SamplingParams(
        **({"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True} | changes)
    )


def settled(server, seconds=20.0):
    """The metrics when nothing runs any more: pages return a round after a result."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = server.metrics()
        if not (found["running_requests"] or found["waiting_requests"]) and (
            found["free_pages"] == found["pages"]
        ):
            return found
        time.sleep(0.01)
    raise AssertionError(f"pages did not return: {server.metrics()}")
