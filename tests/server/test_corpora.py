"""Suffix decoding under a server: corpora that come and go, drafts from the host."""

import json
import threading
from types import SimpleNamespace

import pytest

from jspec.server.corpora import Shelf
from jspec.testing import compilations
from jspec.tokenizer import Tokenizer
from tests.serving import PROMPTS, greedy, settled


@pytest.fixture
def server(servers):
    return servers["suffix"]


@pytest.fixture
def empty(server):
    yield server
    for corpus in server.corpora():
        server.remove_corpus(corpus.name)


def test_greedy_text_is_plain_decodings_and_nothing_is_compiled(servers, server):
    assert servers["plain"].method == "none"
    with compilations() as compiled:
        for _ in range(2):
            done = server.generate(PROMPTS, greedy(20))
            for prompt, one in zip(PROMPTS, done, strict=True):
                assert one.token_ids == servers.plain(prompt, greedy(20)).token_ids
    assert compiled == []
    assert sum(one.speculation.accepted for one in done) > 60


def test_rounds_are_as_short_as_their_drafts(server):
    settled(server)
    before = server.metrics()["rounds_by_num_speculative_tokens"]
    server.generate("zqzqzq", greedy(2, num_speculative_tokens=0))
    after = server.metrics()["rounds_by_num_speculative_tokens"]
    assert set(after) <= {0, 4, 8}
    assert after[0] == before.get(0, 0) + 2


def test_requests_that_ended_or_were_aborted_are_forgotten(server):
    handle = server.submit("the cat", greedy(90))
    handle.abort()
    handle.result(30)
    server.generate("a", greedy(3))
    server.generate("b", greedy(3))
    settled(server)
    assert len(server._engine.host.memory.texts) <= 1


def test_a_corpus_is_loaded_listed_drafted_from_and_removed(servers, empty):
    [said] = servers["plain"].generate("only here", greedy(24))
    document = [*empty.tokenizer.encode("only here"), *said.token_ids]
    empty.add_corpus("papers", [document, "another"], wait=True)
    [listed] = empty.corpora()
    assert (listed.name, listed.status, listed.documents) == ("papers", "ready", 2)
    assert listed.tokens == len(document) + len(empty.tokenizer.encode("another"))
    [done] = empty.generate("only here", greedy(24))
    assert done.token_ids == said.token_ids
    assert done.speculation.tau > 3
    empty.remove_corpus("papers")
    assert empty.corpora() == ()
    assert empty._engine.host.memory.corpora == {}


def test_files_are_corpora_too(empty, tmp_path):
    lines = tmp_path / "a.jsonl"
    lines.write_text(json.dumps("one text") + "\n\n" + json.dumps("two"))
    plain = tmp_path / "b.txt"
    plain.write_text("one text\nin lines")
    empty.add_corpus("lines", lines, wait=True)
    empty.add_corpus("plain", plain, wait=True)
    assert [corpus.documents for corpus in empty.corpora()] == [2, 1]


@pytest.mark.parametrize(
    ("documents", "sentence"),
    [
        ([[1, 10**6]], "document 0 has id 1000000, which is not a token"),
        (["fine", [-1]], "document 1 has id -1, which is not a token"),
        ([], "has no tokens"),
        ([""], "has no tokens"),
        ("a text", "documents are a list of texts"),
    ],
    ids=repr,
)
def test_what_are_no_documents_is_refused(empty, documents, sentence):
    with pytest.raises(ValueError, match=sentence):
        empty.add_corpus("bad", documents, wait=True)
    for corpus in empty.corpora():
        assert corpus.status == "failed"
        assert sentence in corpus.error


def test_bad_files_and_names_are_refused(empty, tmp_path):
    wrong = tmp_path / "a.jsonl"
    wrong.write_text('"fine"\n{"text": 1}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl:2 is not a JSON string"):
        empty.add_corpus("bad", wrong, wait=True)
    with pytest.raises(ValueError, match="is no file with documents"):
        empty.add_corpus("none", tmp_path / "missing.jsonl")
    with pytest.raises(ValueError, match="'bad' is there already; remove it first"):
        empty.add_corpus("bad", ["x"])
    with pytest.raises(ValueError, match="a corpus has a name, not ''"):
        empty.add_corpus("", ["x"])
    with pytest.raises(ValueError, match="there is no corpus 'other'"):
        empty.remove_corpus("other")


def test_other_methods_take_no_corpora(servers):
    with pytest.raises(ValueError, match="drafts from no corpora; 'suffix' does"):
        servers["ngram"].add_corpus("a", ["x"])


class Slow(Tokenizer):
    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()

    def encode(self, text, add_special_tokens=True):
        self.begun.set()
        assert self.go.wait(10)
        return [1, 2]


def test_a_corpus_removed_while_it_loads_never_appears():
    memory, slow = SimpleNamespace(corpora={}), Slow()
    shelf = Shelf(memory, slow, 9)
    thread = shelf.add("a", ["x"])
    assert slow.begun.wait(10)
    assert [state.status for state in shelf.states()] == ["loading"]
    shelf.remove("a")
    slow.go.set()
    thread.join()
    assert shelf.states() == ()
    assert memory.corpora == {}
    shelf.add("a", ["x"]).join()
    assert [state.status for state in shelf.states()] == ["ready"]
