"""The client of Apicurio Registry, against a small server on loopback that answers as it is told."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cdc_lake.errors import InfrastructureError
from cdc_lake.events.schemas import fields, parse
from cdc_lake.sources.registry import ApicurioRegistry

BASE = "/apis/registry/v3"


class FakeApicurio(ThreadingHTTPServer):
    """A fake: answers by path, (status, body), one after the other, the last for ever; 404 otherwise."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, list[tuple[int, str]]] = {}
        self.asked: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, *answers: tuple[int, object]) -> None:
        self.answers[f"{BASE}/{path}"] = [(s, b if isinstance(b, str) else json.dumps(b)) for s, b in answers]


class _Handler(BaseHTTPRequestHandler):
    server: FakeApicurio

    def do_GET(self) -> None:
        self.server.asked[self.path.removeprefix(f"{BASE}/")] += 1
        left = self.server.answers.get(self.path, [(404, "")])
        status, text = left.pop(0) if len(left) > 1 else left[0]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", text)
        content = text.encode()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[FakeApicurio]:
    with FakeApicurio() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def client(server: FakeApicurio, attempts: int = 2) -> ApicurioRegistry:
    return ApicurioRegistry(server.url, ids="content", timeout_seconds=5, attempts=attempts)


def a_record(name: str, kind: object) -> dict[str, object]:
    return {"type": "record", "name": name, "namespace": "x", "fields": [{"name": "v", "type": kind}]}


def reference(artifact: str) -> dict[str, object]:
    return {"groupId": None, "artifactId": artifact, "version": "1", "name": f"x.{artifact}"}


def test_a_content_id_is_its_text(server: FakeApicurio) -> None:
    server.answer("ids/contentIds/5", (200, '{"type": "string"}'))

    assert client(server).text(5) == '{"type": "string"}'


def test_the_namespace_of_the_ids_is_the_one_that_was_set(server: FakeApicurio) -> None:
    server.answer("ids/contentIds/5", (200, '"string"'))
    server.answer("ids/globalIds/5", (200, '"int"'))

    by_global = ApicurioRegistry(server.url, ids="global", timeout_seconds=5, attempts=1)

    assert (by_global.text(5), by_global.namespace) == ('"int"', "globalId")
    assert (client(server).text(5), client(server).namespace) == ('"string"', "contentId")


def test_references_are_followed_and_written_into_the_text(server: FakeApicurio) -> None:
    server.answer("ids/contentIds/1", (200, a_record("Outer", ["null", "x.Middle"])))
    server.answer("ids/contentIds/1/references", (200, [reference("Middle")]))
    versions = "groups/default/artifacts/{}/versions/1/{}"
    server.answer(versions.format("Middle", "content"), (200, a_record("Middle", "x.Inner")))
    server.answer(versions.format("Middle", "references"), (200, [reference("Inner")]))
    server.answer(versions.format("Inner", "content"), (200, a_record("Inner", "int")))
    server.answer(versions.format("Inner", "references"), (200, []))

    text = client(server).text(1)

    assert text is not None
    middle = fields(parse(text))["v"]["branches"][1]
    assert fields(fields(middle)["v"]) == {"v": {"type": "int"}}


def test_references_that_go_round_in_a_circle_end(server: FakeApicurio) -> None:
    server.answer("ids/contentIds/1", (200, a_record("A", ["null", "x.B"])))
    server.answer("ids/contentIds/1/references", (200, [reference("B")]))
    server.answer("groups/default/artifacts/B/versions/1/content", (200, a_record("B", ["null", "x.B"])))
    server.answer("groups/default/artifacts/B/versions/1/references", (200, [reference("B")]))

    assert client(server).text(1) is not None
    assert server.asked["groups/default/artifacts/B/versions/1/content"] == 1


def test_a_reference_to_what_the_registry_does_not_have_is_its_fault(server: FakeApicurio) -> None:
    server.answer("ids/contentIds/1", (200, a_record("A", "x.B")))
    server.answer("ids/contentIds/1/references", (200, [reference("B")]))

    with pytest.raises(InfrastructureError, match="does not have it"):
        client(server).text(1)


def test_an_id_that_the_registry_does_not_have_is_none_and_asked_for_once(server: FakeApicurio) -> None:
    assert client(server).text(99) is None
    assert server.asked["ids/contentIds/99"] == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_an_answer_that_may_pass_by_itself_is_asked_for_again(server: FakeApicurio, status: int) -> None:
    server.answer("ids/contentIds/1", (status, "later"), (200, '"string"'))

    assert client(server).text(1) == '"string"'


def test_a_registry_that_stays_down_is_bad_infrastructure(server: FakeApicurio) -> None:
    server.answer("ids/contentIds/1", (503, "down"))

    with pytest.raises(InfrastructureError) as caught:
        client(server, attempts=3).text(1)

    assert caught.value.exit_code == 10
    assert caught.value.retryable
    assert server.asked["ids/contentIds/1"] == 3


@pytest.mark.parametrize("status", [400, 401, 403])
def test_an_answer_that_will_not_change_is_not_asked_for_again(server: FakeApicurio, status: int) -> None:
    server.answer("ids/contentIds/1", (status, "no"))

    with pytest.raises(InfrastructureError, match=f"answered {status}"):
        client(server).text(1)
    assert server.asked["ids/contentIds/1"] == 1


def test_a_redirect_is_not_followed(server: FakeApicurio) -> None:
    server.answer("ids/contentIds/1", (302, f"{server.url}{BASE}/ids/contentIds/2"))
    server.answer("ids/contentIds/2", (200, '"string"'))

    with pytest.raises(InfrastructureError, match="302"):
        client(server).text(1)
    assert server.asked["ids/contentIds/2"] == 0


def test_a_registry_that_does_not_listen_is_bad_infrastructure(server: FakeApicurio) -> None:
    url = server.url
    server.socket.close()

    with pytest.raises(InfrastructureError, match="does not answer"):
        ApicurioRegistry(url, ids="content", timeout_seconds=5, attempts=1).check()


def test_a_registry_that_answers_passes_the_check(server: FakeApicurio) -> None:
    server.answer("system/info", (200, {"name": "Apicurio Registry"}))

    client(server).check()

    assert server.asked["system/info"] == 1
