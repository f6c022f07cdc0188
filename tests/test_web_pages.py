"""The page without its workers: who may ask, what every answer carries, how names and states are shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient

from windtunnel.errors import StoreError
from windtunnel.measurement.reading import ReadStore
from windtunnel.measurement.store import Store
from windtunnel.web.allowed import AllowedJobs
from windtunnel.web.app import PageSetup, create_app
from windtunnel.web.pages import guide
from windtunnel.web.project_rows import project_rows
from windtunnel.web.worker_pool import Busy, PoolSetup, Reply, Ticket, WorkerPool

ROOT = Path(__file__).parent.parent
HOSTILE = '<script>alert(1)</script>"onload="x\u202e\x1b[31m'
PAGES = [
    "/",
    "/?job=nosuch",
    "/machines",
    "/machines/h200",
    "/machines/hgx-h100",
    "/machines/i7-3820",
    "/networks",
    "/networks/rnn",
    "/studies",
    "/studies/wuensche-2018",
    "/accuracy",
    "/accuracy/h200",
    "/guide",
    "/part/forecast",
    "/nosuch",
    "/machines/nosuch",
    "/static/page.css",
    "/static/page.js",
    "/static/nosuch",
]


class FakePool(WorkerPool):
    """Answers every question with the same reply, or leaves it open."""

    def __init__(
        self, reply: Reply | None = None, *, busy: bool = False, files: dict[str, str] | None = None
    ):
        self.setup = PoolSetup(cache=Path("/nowhere"), files=files or {})
        self.reply, self.busy = reply, busy
        self.asked: list[tuple[str, str]] = []

    def ask(self, task: str, query: str, job: str, stamp: str = "", **details: object) -> Ticket:
        if self.busy:
            raise Busy("128 questions wait already.")
        self.asked.append((task, query))
        ticket = Ticket(query, {})
        if self.reply is not None:
            ticket.future.set_result(self.reply)
        return ticket

    def ahead(self, query: str, job: str, stamp: str = "", **details: object) -> None:
        self.asked.append(("ahead", query))

    def end(self) -> None: ...


def client_of(pool: WorkerPool, host: str = "localhost", port: int | None = None) -> TestClient:
    allowed = AllowedJobs(files=pool.setup.files)
    app = create_app(PageSetup(allowed=allowed, pool=pool, port=port))
    return TestClient(app, base_url=f"http://{host}", raise_server_exceptions=False)


DONE = Reply(state="done", text="<p>an answer</p>", facts={"batch": 32})


@pytest.fixture
def client() -> Iterator[TestClient]:
    yield client_of(FakePool(DONE))


# Who may ask


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.1", ""]
)
def test_a_foreign_host_name_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 421
    assert "windtunnel serve" in answer.text


def test_the_own_port_must_be_named() -> None:
    client = client_of(FakePool(DONE), port=8765)
    assert client.get("/", headers={"host": "127.0.0.1:8765"}).status_code == 200
    assert client.get("/", headers={"host": "127.0.0.1:9999"}).status_code == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_the_page_is_only_read(client: TestClient, method: str) -> None:
    answer = client.request(method, "/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_bodies_and_long_addresses_are_refused(client: TestClient) -> None:
    assert client.request("GET", "/", content=b"x").status_code == 413
    assert client.get("/", params={"job": "x" * 5000}).status_code == 414
    assert client.get(f"/machines/{'x' * 400}").status_code == 414


def test_another_page_cannot_ask_for_work_but_may_link_here(client: TestClient) -> None:
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    assert client.get("/part/forecast", headers=foreign).status_code == 403
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=linked).status_code == 200
    framed = {**linked, "sec-fetch-dest": "iframe"}
    assert client.get("/", headers=framed).status_code == 403


@pytest.mark.parametrize("path", PAGES)
def test_every_answer_forbids_what_it_does_not_need(client: TestClient, path: str) -> None:
    answer = client.get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", [path for path in PAGES if "static" not in path])
def test_no_page_holds_script_or_style_of_its_own_or_loads_from_elsewhere(
    client: TestClient, path: str
) -> None:
    text = client.get(path).text
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text, re.IGNORECASE)
    assert re.findall(r"<script[^>]*>", text) in ([], ['<script src="/static/page.js" defer>'])
    loaded = re.findall(r'(?:src|<link[^>]*href|action)="([^"]*)"', text)
    assert all(address.startswith("/") for address in loaded)


# Names that are not ours


@pytest.mark.parametrize("field", ["job", "settings", "on", "batch", "storage", "precision"])
def test_hostile_values_are_shown_harmlessly(client: TestClient, field: str) -> None:
    for path in ("/", "/part/forecast"):
        answer = client.get(path, params={field: HOSTILE})
        assert answer.status_code == 400
        assert "<script>alert" not in answer.text
        assert "\u202e" not in answer.text and "\x1b" not in answer.text


@pytest.mark.parametrize("path", ["/machines/{}", "/networks/{}", "/studies/{}", "/accuracy/{}", "/guide/{}"])
@pytest.mark.parametrize("name", ["<script>alert(1)", "..%2f..%2fetc%2fpasswd", "../pyproject.toml", "%00"])
def test_hostile_names_of_pages_are_not_found_and_not_obeyed(
    client: TestClient, path: str, name: str
) -> None:
    answer = client.get(path.format(name))
    assert answer.status_code == 404
    assert "<script>alert" not in answer.text and "root:" not in answer.text


def test_a_hostile_label_of_a_registered_file_is_escaped() -> None:
    label = '"><img src=x onerror=alert(1)>.py:build'
    client = client_of(FakePool(DONE, files={label: "/x/y.py:build"}))
    text = client.get("/", params={"job": label}).text
    assert "<img src=x" not in text and "/x/y.py" not in text


def test_an_error_of_a_job_is_escaped() -> None:
    refused = Reply(state="refused", message="<b>bad\x1b[2J</b>", hint="<i>try</i>")
    text = client_of(FakePool(refused)).get("/").text
    assert "&lt;b&gt;bad" in text and "&lt;i&gt;try" in text and "\x1b" not in text


# States of an answer


def test_an_answer_comes_with_its_page(client: TestClient) -> None:
    answer = client.get("/", params={"job": "rnn", "batch": "64"})
    assert answer.status_code == 200
    assert "<p>an answer</p>" in answer.text
    assert 'value="rnn"' in answer.text and 'value="64"' in answer.text


def test_after_an_answer_its_neighbours_are_traced_ahead() -> None:
    pool = FakePool(DONE)
    client_of(pool).get("/part/forecast")
    assert ("ahead", "job=resnet50&on=h200&batch=64") in pool.asked


@pytest.mark.parametrize(
    ("pool", "status", "words"),
    [
        (FakePool(None), 202, "waiting for a free worker"),
        (FakePool(busy=True), 503, "Busy"),
        (FakePool(Reply(state="refused", message="It needs 41 GiB.", hint="Use less.")), 422, "41 GiB"),
        (
            FakePool(Reply(state="fault", message="Traceback secret.py line 3")),
            500,
            "A fault of windtunnel",
        ),
    ],
)
def test_each_state_of_an_answer_has_its_status_and_its_words(
    pool: WorkerPool, status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windtunnel.web.app._PART_SECONDS", 0.01)
    monkeypatch.setattr("windtunnel.web.app._PAGE_SECONDS", 0.01)
    client = client_of(pool)
    answer = client.get("/part/forecast")
    assert answer.status_code == status
    assert words.lower() in answer.text.lower()
    assert "secret" not in answer.text
    if status in (202, 503):
        assert int(answer.headers["retry-after"]) > 0
    assert words.lower() in client.get("/").text.lower()


def test_a_browser_without_script_gets_whole_pages_that_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.web.app._PART_SECONDS", 0.01)
    answer = client_of(FakePool(None)).get("/part/advice", headers={"sec-fetch-dest": "document"})
    assert answer.status_code == 200
    assert "<!DOCTYPE html>" in answer.text and 'http-equiv="refresh"' in answer.text


# Pages that need no worker


def test_each_machine_shows_its_figures_with_their_sources(client: TestClient) -> None:
    text = client.get("/machines/h200").text
    assert "139 GiB" in text or "141" in text
    assert "4.80 TB/s" in text
    rows = re.findall(r"<tr><th[^>]*>(.*?)</th><td[^>]*>(.*?)</td><td>(.*?)</td></tr>", text)
    assert len(rows) > 8
    sourced = [row for row in rows if row[0] in ("memory bytes", "memory rate", "bf16 peak")]
    assert sourced and all(row[2] for row in sourced)


def test_all_machines_and_networks_and_studies_are_listed(client: TestClient) -> None:
    from windtunnel import networks
    from windtunnel.machine import machine
    from windtunnel.study import study

    for path, names in (
        ("/machines", (*machine.names(), *machine.node_names())),
        ("/networks", networks.names()),
        ("/studies", study.names()),
    ):
        text = client.get(path).text
        assert all(f'href="{path}/{name}"' in text for name in names)


def test_the_accuracy_is_that_of_the_tables(client: TestClient) -> None:
    data = json.loads((ROOT / "docs/accuracy.json").read_text())
    text = client.get("/accuracy").text
    for name, found in data.items():
        first = next(each for each in found["judgements"] if "errors" in each)
        assert f'href="/accuracy/{name}"' in text
        assert f"{100 * first['errors']['median']:.1f} %" in text


def test_each_measured_step_is_a_dot_and_a_row(client: TestClient) -> None:
    rows = json.loads((ROOT / "docs/accuracy.json").read_text())["ice-lake-2-cores"]["rows"]
    text = client.get("/accuracy/ice-lake-2-cores").text
    assert text.count('class="dot"') == sum("step" in row for row in rows) > 0
    assert text.count('class="dot base"') == sum("step roofline" in row for row in rows) > 0
    worst = max(rows, key=lambda row: abs(row["step"]))
    assert f"{100 * worst['step']:+.1f} %" in text


def test_without_a_guide_the_page_says_where_to_begin(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "FOLDERS", ())
    text = client.get("/guide").text
    assert "not installed here" in text and 'href="/networks"' in text


def test_the_guide_is_shown_and_html_in_it_is_not_obeyed(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "FOLDERS", (tmp_path,))
    (tmp_path / "index.md").write_text(
        "# Begin\n\n<script>alert(1)</script>\n\n![a figure](figure.svg)\n\n[next](two.md#a)\n\n"
        "| a |\n|---|\n| 1 |\n"
    )
    (tmp_path / "two.md").write_text("# Two\n")
    (tmp_path / "figure.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (tmp_path / "secret.py").write_text("secret")
    text = client.get("/guide").text
    assert "&lt;script&gt;" in text and "<script>alert" not in text
    assert 'src="/guide/figure.svg"' in text and 'href="/guide/two#a"' in text and "<table>" in text
    assert client.get("/guide/two").status_code == 200
    assert client.get("/guide/figure.svg").headers["content-type"] == "image/svg+xml"
    assert client.get("/guide/secret.py").status_code == 404


def test_style_and_script_are_not_sent_twice(client: TestClient) -> None:
    first = client.get("/static/page.js")
    again = client.get("/static/page.js", headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


# The store


def test_the_store_is_only_read(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with pytest.raises(StoreError, match="There is no store"):
        ReadStore(path)
    assert not path.exists()
    Store(path).close()
    before = path.read_bytes()
    store = ReadStore(path)
    assert store.results() == []
    with pytest.raises(StoreError):
        store.seed("study", 1)
    store.close()
    assert path.read_bytes() == before


def test_the_guide_shows_its_pictures_and_links_only_to_what_is_served(client: TestClient) -> None:
    text = client.get("/guide/08-clusters").text
    assert "&lt;!--" not in text and 'href="../' not in text
    drawings = re.findall(r"<figure[^>]*>(<svg.*?</svg>)\s*</figure>", text, re.DOTALL)
    assert len(drawings) == 4
    for drawing in drawings:
        assert 'role="img"' in drawing and "currentColor" in drawing and 'fill="white"' not in drawing
    marks = re.findall(r' id="([^"]+)"', text)
    assert len(marks) == len(set(marks))
    picture = client.get("/guide/guide-clusters.svg")
    assert picture.headers["content-type"].startswith("image/svg+xml")
    for address in re.findall(r'href="(/guide/[^"#]+)', text):
        assert client.get(address).status_code == 200, address


def test_tables_of_the_guide_align_numbers_and_label_verdicts_without_a_style_of_their_own(
    client: TestClient,
) -> None:
    """The policy of the page forbids styles of single elements."""
    text = client.get("/guide/13-recurrent").text
    assert '<th class="n">K80</th>' in text and re.search(r'<td class="n">[\d.]+ ms</td>', text)
    statements = client.get("/guide/statements").text
    assert '<td class="whole"><span class="ruling holds">holds</span></td>' in statements
    assert '<span class="ruling does">does not hold</span>' in statements
    prose = re.findall(r'<article class="prose">.*</article>', text + statements, re.DOTALL)
    assert prose and not re.search(r"<t[dh][^>]* style=", "".join(prose))


def test_a_link_with_a_mistake_keeps_the_rest_of_the_form(client: TestClient) -> None:
    answer = client.get("/?job=nosuch&on=gtx1080&batch=24&precision=fp16&layout=sideways")
    assert answer.status_code == 400
    assert 'name="on" value="gtx1080"' in answer.text
    assert re.search(r'id="f-batch"[^>]* value="24"', answer.text)
    assert '<option value="fp16" selected>' in answer.text
    assert 'name="job" list="jobs" value="nosuch"' in answer.text and "sideways" not in answer.text


def test_a_page_that_is_missing_says_where_to_go(client: TestClient) -> None:
    text = client.get("/nosuch").text
    for address in ("/", "/machines", "/networks", "/studies", "/accuracy", "/guide"):
        assert f'<li><a href="{address}">' in text


def test_a_study_is_asked_anew_when_its_rows_changed(tmp_path: Path) -> None:
    pool = StampedPool(DONE)
    rows = tmp_path / "rows.json"
    rows.write_text("[]")
    pool.setup = PoolSetup(cache=Path("/nowhere"), rows=(rows,), store=tmp_path / "none.sqlite")
    client = client_of(pool)
    client.get("/studies/wuensche-2018")
    client.get("/part/studies/wuensche-2018")
    rows.write_text("[ ]")
    client.get("/studies/wuensche-2018")
    first, same, changed = pool.stamps
    assert first == same != changed


class StampedPool(FakePool):
    """Remembers by which stamps it was asked."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.stamps: list[str] = []

    def ask(self, task: str, query: str, job: str, stamp: str = "", **details: object) -> Ticket:
        self.stamps.append(stamp)
        return super().ask(task, query, job, stamp, **details)


@pytest.mark.parametrize("study", ["brandfonbrener-2017", "wuensche-2018", "choice-2026", "exchange-2026"])
def test_the_rows_of_the_project_are_there_for_every_study(study: str) -> None:
    rows = project_rows(study)
    assert rows and {row.study for row in rows} == {study}
    assert "published" not in {row.origin for row in rows}


def test_where_the_rows_of_the_project_are_missing_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.web.project_rows.FOLDERS", (Path("/nowhere"),))
    assert project_rows.__wrapped__("wuensche-2018") == ()
