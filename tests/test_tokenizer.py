"""Text to ids and back, chats, and whether two tokenizers are the same."""

import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from jspec.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if not loop.last %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def alphabet():
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def write(folder, *, extra=(), swap=None, begin=False, **settings):
    folder.mkdir(exist_ok=True)
    tokens = [*alphabet(), "he", "ll", "Ġw", *extra]
    if swap:
        i, j = swap
        tokens[i], tokens[j] = tokens[j], tokens[i]
    backend = Backend(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[("h", "e"), ("l", "l"), ("Ġ", "w")],
        )
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<|user|>", "<|assistant|>"])
    if begin:
        backend.post_processor = processors.TemplateProcessing(
            single=["<s>", "$A"], special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | settings))
    return Tokenizer(folder)


def test_text_comes_back(tmp_path):
    tokenizer = write(tmp_path / "t")
    text = "hello wörld 🙂"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(i) for i in ids).decode() == text
    assert tokenizer.token_bytes(tokenizer.size) == b""
    assert tokenizer.size == 256 + 3 + 4


def test_special_tokens_are_added_only_where_tokenizer_json_says_so(tmp_path):
    plain = write(tmp_path / "a", add_bos_token=True)
    assert plain.encode("he") == plain.encode("he", add_special_tokens=False)
    begun = write(tmp_path / "b", begin=True)
    assert begun.encode("he") == [begun.bos_id, *plain.encode("he")]
    assert begun.encode("he", add_special_tokens=False) == plain.encode("he")


def test_a_chat_is_rendered_up_to_the_answer(tmp_path):
    tokenizer = write(tmp_path / "t")
    messages = [{"role": "user", "content": "he"}]
    assert tokenizer.render(messages) == "<|user|>he<|assistant|>"
    names = [tokenizer.tokens[i] for i in tokenizer.chat(messages)]
    assert names == ["<|user|>", "he", "<|assistant|>"]
    rendered = tokenizer.render(messages, add_generation_prompt=False)
    assert rendered == "<|user|>he"


def test_a_template_file_comes_before_the_config(tmp_path):
    write(tmp_path / "t")
    text = "{{ bos_token }}{% generation %}{{ messages | tojson }}{% endgeneration %}"
    (tmp_path / "t" / "chat_template.jinja").write_text(text)
    tokenizer = Tokenizer(tmp_path / "t")
    messages = [{"role": "user", "content": "<é>"}]
    assert tokenizer.render(messages) == ('<s>[{"role": "user", "content": "<é>"}]')


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (None, "has no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.nothing.more }}", "the chat template refuses"),
    ],
)
def test_a_chat_that_cannot_be_rendered_is_one_sentence(tmp_path, template, sentence):
    tokenizer = write(tmp_path / "t", chat_template=template)
    with pytest.raises(ValueError, match=sentence):
        tokenizer.chat([{"role": "user", "content": "he"}])


def test_the_ends_are_those_of_checkpoint_and_tokenizer(tmp_path):
    write(tmp_path / "t")
    manifest = {"config": {"eos_token_ids": [7, 8]}}
    (tmp_path / "t" / "jspec.json").write_text(json.dumps(manifest))
    tokenizer = Tokenizer(tmp_path / "t")
    assert tokenizer.eos_ids == (7, 8, tokenizer.vocabulary["</s>"])


def test_identity_is_that_of_every_id(tmp_path):
    one, same = write(tmp_path / "a"), write(tmp_path / "b", chat_template="{{ 1 }}")
    assert one.fingerprint() == same.fingerprint()
    assert one.first_difference(same) is None
    swapped = write(tmp_path / "c", swap=(40, 50))
    assert one.fingerprint() != swapped.fingerprint()
    a, b = alphabet()[40], alphabet()[50]
    sentence = f"token 40 is {a!r} in one and {b!r} in the other"
    assert one.first_difference(swapped) == sentence
    longer = write(tmp_path / "d", extra=["hell"])
    assert one.first_difference(longer) == (
        "token 259 is '<s>' in one and 'hell' in the other"
    )


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("begin", [True, False])
def test_transformers_reads_the_same_ids(tmp_path, begin):
    transformers = pytest.importorskip("transformers")
    kind = "PreTrainedTokenizerFast"
    ours = write(tmp_path / "t", begin=begin, add_bos_token=True, tokenizer_class=kind)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "t")
    for text in ("hello wörld 12", "<|user|>he", ""):
        assert theirs(text)["input_ids"] == ours.encode(text)
    messages = [{"role": "user", "content": "hello"}]
    rendered = theirs.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    assert rendered == ours.render(messages)
