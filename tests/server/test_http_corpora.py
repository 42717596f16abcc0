import time

import pytest
from starlette.testclient import TestClient

from jspec.server.http import Service


@pytest.fixture(scope="module")
def client(servers):
    return TestClient(Service(servers["suffix"]).app)


def test_a_corpus_comes_and_goes_over_http(client):
    asked = client.put("/v1/corpora/notes", json={"documents": ["one", "two"]})
    assert (asked.status_code, asked.json()["status"]) == (202, "loading")
    end = time.monotonic() + 10
    while client.get("/v1/corpora").json()["data"][0]["status"] == "loading":
        assert time.monotonic() < end
    [found] = client.get("/v1/corpora").json()["data"]
    assert (found["name"], found["status"], found["documents"]) == ("notes", "ready", 2)
    again = client.put("/v1/corpora/notes", json={"documents": ["x"]})
    assert again.status_code == 400
    assert "is there already" in again.json()["error"]["message"]
    assert client.delete("/v1/corpora/notes").json()["deleted"] is True
    assert client.get("/v1/corpora").json()["data"] == []
    assert client.delete("/v1/corpora/notes").status_code == 404


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "the body is not JSON"),
        (b'{"texts": []}', "with 'documents' and no more"),
        (b'{"documents": [1]}', "documents must be a list of strings"),
        (b'{"documents": "one"}', "documents must be a list of strings"),
    ],
)
def test_other_bodies_are_refused(client, body, sentence):
    refused = client.put("/v1/corpora/notes", content=body)
    assert refused.status_code == 400
    assert sentence in refused.json()["error"]["message"]


def test_a_method_without_corpora_says_so(servers):
    client = TestClient(Service(servers["ngram"]).app)
    refused = client.put("/v1/corpora/notes", json={"documents": ["x"]})
    assert refused.status_code == 400
    assert "drafts from no corpora" in refused.json()["error"]["message"]
