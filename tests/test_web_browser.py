"""The page in a real browser: choosing, sliding, applying advice, sharing a link, keyboard, accessibility."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wide_study import write_wide_study

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.base")
CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium")

SLOW = 240_000  # milliseconds: a loaded machine traces slowly
JOB = """
import torch
import windtunnel as wt

def build():
    return wt.Workload(
        name='<img src=x onerror=alert(1)>',
        model=lambda: torch.nn.Linear(8, 8),
        batch=lambda n: torch.randn(n, 8),
        loss=lambda model, x: model(x).mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
"""
FFN = "/?job=ffn&on=h200&batch=64"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running page. Its process is ended at the end."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "mine.py").write_text(JOB)
    study, rows = write_wide_study(folder)
    command = [sys.executable, "-m", "windtunnel", "serve", "--port", "0", "--workers", "1"]
    command += ["--trace-seconds", "900"]  # a loaded machine traces slowly
    process = subprocess.Popen(
        [*command, "--job", "mine.py:build", "--study", str(study), "--rows", str(rows)],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "WINDTUNNEL_CACHE": str(folder / "cache")},
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found, line + process.stderr.read()
    yield found[0]
    process.terminate()
    process.wait(timeout=300)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must neither open a dialog nor have anything refused by its policy."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page, wrong = context.new_page(), list[str]()
    page.set_default_timeout(SLOW)
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert not [each for each in wrong if "status of 4" not in each and "status of 5" not in each]


def opened(page: Any, address: str) -> None:
    page.goto(address)
    settled(page)


def settled(page: Any) -> None:
    """Wait until the answer is there and belongs to the form."""
    page.locator("[data-waiting]").first.wait_for(state="detached")
    page.locator("#result.old").wait_for(state="detached")


def step_of(page: Any) -> str:
    return str(page.locator("#result .tile .figure").first.inner_text())


def batch_of(page: Any) -> str:
    return str(page.locator("h2.answer + p").inner_text()).split(",")[0]


def test_choosing_a_job_and_a_machine_shows_their_forecast(page: Any, address: str) -> None:
    opened(page, address + FFN)
    before = step_of(page)
    page.locator("#f-on-1").select_option("i7-3820")
    page.locator("h2.answer", has_text="i7-3820").wait_for()
    assert step_of(page) != before
    assert "on=i7-3820" in page.url
    for title in ("Where the time goes", "Memory over the step", "Timeline of one step"):
        assert page.get_by_role("heading", name=title).is_visible()
    page.get_by_role("button", name="Add a machine to compare").click()
    page.get_by_role("heading", name="Side by side").wait_for()
    assert page.url.count("on=") == 2
    page.get_by_role("button", name="Remove i7-3820").click()
    page.locator("#result .tiles").first.wait_for()
    settled(page)
    assert page.url.count("on=") == 1


def test_sliding_changes_forecast_and_link_and_back_undoes_it(page: Any, address: str) -> None:
    opened(page, address + FFN)
    assert batch_of(page) == "Batch 64"
    page.locator("#f-batch-slide").focus()
    page.keyboard.press("ArrowRight")
    page.locator("h2.answer + p", has_text="Batch 128").wait_for()
    settled(page)
    assert "batch=128" in page.url
    assert page.locator("#f-batch").input_value() == "128"
    page.locator("#f-devices-1").focus()
    page.keyboard.press("ArrowRight")
    page.locator("h2.answer", has_text="2xh200").wait_for()
    assert "on=2xh200" in page.url
    page.go_back()
    page.locator("h2.answer", has_text="on h200").wait_for()
    page.go_back()
    page.locator("h2.answer + p", has_text="Batch 64").wait_for()
    assert page.locator("#f-batch").input_value() == "64"


def test_a_shared_link_shows_the_same(page: Any, browser: Any, address: str) -> None:
    opened(page, f"{address}/?job=ffn&settings=hidden%3D64&on=2xh100&batch=64&precision=bf16")
    other = browser.new_context().new_page()
    opened(other, page.url)
    assert step_of(other) == step_of(page)
    assert other.locator("#f-precision").input_value() == "bf16"
    assert other.locator("#f-settings").input_value() == "hidden=64"
    assert other.locator("#f-devices-1").input_value() == "1"
    other.context.close()


def test_advice_is_found_and_applied_with_a_click(page: Any, address: str) -> None:
    opened(page, address + FFN)
    page.get_by_role("link", name="Find advice").click()
    apply = page.locator("#advice .advice a", has_text="Apply").first
    apply.wait_for()
    said = apply.get_attribute("aria-label")
    apply.click()
    settled(page)
    assert page.url != address + FFN, said
    page.locator("#result .tile .figure").first.wait_for()
    page.go_back()
    settled(page)
    assert page.url == address + FFN


def test_a_link_at_the_top_goes_to_its_part_and_asks_for_it(page: Any, address: str) -> None:
    opened(page, address + FFN)
    page.get_by_role("link", name="Data feed").first.click()
    page.locator("#feed .loaded table").first.wait_for(state="attached")
    assert page.locator("#feed").evaluate("part => part.getBoundingClientRect().top < innerHeight")
    assert page.url == address + FFN


def test_machines_are_found_by_their_words(page: Any, address: str) -> None:
    opened(page, f"{address}/machines")
    page.get_by_label("Show machines with").fill("dgx-1 v100")
    shown = page.locator("tbody tr:not([hidden])")
    assert shown.count() == 1 and "dgx-1-v100" in shown.inner_text()
    assert page.get_by_role("heading", name="Nodes").is_visible()
    assert not page.get_by_role("heading", name="CPUs").is_visible()
    page.get_by_label("Show machines with").fill("")
    assert page.locator("tbody tr[hidden]").count() == 0


def test_the_keyboard_reaches_everything(page: Any, address: str) -> None:
    opened(page, address + FFN)
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the content"
    seen = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        if not focused.count():  # the last one: the browser itself follows
            break
        seen |= {focused.get_attribute("id"), focused.get_attribute("data-load")}
    assert {"f-job", "f-settings", "f-on-1", "f-devices-1", "f-batch-slide", "f-precision"} <= seen
    assert {"advice", "scaling", "feed", "factors"} <= seen
    timeline = page.locator(".zoomable .scroll").first
    timeline.focus()
    page.keyboard.press("+")
    assert page.locator("svg.timeline").first.get_attribute("width") == "200%"


def test_on_a_narrow_screen_a_line_says_the_answer_while_it_is_out_of_sight(
    browser: Any, address: str
) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 700})
    page = context.new_page()
    page.set_default_timeout(SLOW)
    opened(page, address + FFN)
    line = page.locator("#glance-at")
    line.wait_for(state="visible")
    assert step_of(page) in line.inner_text()
    line.click()
    line.wait_for(state="hidden")
    assert page.locator("h2.answer").is_visible()
    context.close()


def test_a_mistake_is_explained_and_the_form_stays(page: Any, address: str) -> None:
    opened(page, address + FFN)
    page.locator("#f-settings").fill("hidden=0")
    page.locator("#f-settings").press("Enter")
    page.locator("#result .alert").wait_for()
    assert "hidden" in page.locator("#result .alert").inner_text()
    page.locator("#f-settings").fill("")
    page.locator("#f-settings").press("Enter")
    page.locator("#result .tile").first.wait_for()


def test_a_hostile_name_is_only_read(page: Any, address: str) -> None:
    opened(page, f"{address}/?job=mine.py:build&on=h200&batch=64")
    page.locator("#result .tile").first.wait_for()
    assert page.locator("#result img").count() == 0


def test_a_study_with_ten_thousand_cells_can_be_read(page: Any, address: str) -> None:
    opened(page, f"{address}/studies/wide")
    assert page.get_by_role("heading", name="Wide <b>").is_visible()
    assert "10,000" in page.locator(".tiles").first.inner_text()
    page.get_by_role("link", name="Draw One").click()
    page.locator(".loaded table").first.wait_for(state="attached")
    assert page.locator(".loaded svg").count() > 0


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_no_page_has_a_serious_fault_for_assistive_technology(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    """axe on every kind of page; and nothing is wider than the screen. The checker itself needs eval, which
    the policy forbids, so that this one context ignores the policy."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    page.set_default_timeout(SLOW)
    pages = [FFN, "/?job=ffn&on=h200&on=i7-3820&batch=64", "/?job=nosuch", "/machines", "/machines/h200"]
    pages += ["/networks", "/networks/ffn", "/studies", "/studies/wuensche-2018", "/accuracy"]
    pages += ["/accuracy/h200", "/guide", "/guide/05-gpu", "/studies/wide", "/nosuch"]
    for path in pages:
        opened(page, address + path)
        page.add_script_tag(path=str(axe.AXE_FILE_PATH))
        found = page.evaluate("axe.run()")["violations"]
        serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
        assert not serious, (path, serious, [node["html"][:200] for node in found[0]["nodes"]])
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, path
    context.close()
