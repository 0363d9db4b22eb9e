"""The page in a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.finished_studies import write_study

from unseen.studies.report.write import report

CHROMIUM = os.environ.get("UNSEEN_CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium, or set UNSEEN_CHROMIUM")
    with playwright.sync_playwright() as driver:
        # A container's root has no user namespaces to put the sandbox in; the page is our own.
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("study")
    paper = {"accuracy": {"fedavg": {"d0": "50.0"}, "Elsewhere": {"d0": "99.0"}}}
    names = ("fedavg", "fedavg+ga", "ppdg(lam=0.1)", "ppdg(lam=0.2)", "fedprox(mu=0.5)", "csac")
    write_study(out, methods=names, settings={"published": paper})
    return report(out, out / "report", files=False).as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, which must load nothing else and complain of nothing."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    opened, said, asked = context.new_page(), [], []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(address)
    yield opened
    assert not said
    assert {url for url in asked if not url.startswith("data:")} == {address}
    context.close()


def names(page: Any) -> list[str]:
    shown = page.locator("#table-0 tbody tr:visible th")
    return [text.split(" ")[0].strip() for text in shown.all_inner_texts()]


def test_a_column_sorts_best_first_then_worst_then_as_it_was(page: Any) -> None:
    before = names(page)
    head = page.locator("#table-0 thead th", has_text="average")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    # Every next method is 0.01 better than the one before; the paper's row has no average.
    assert names(page) == ["csac", "fedprox(mu=0.5)", "ppdg(lam=0.2)", "ppdg(lam=0.1)",
                           "fedavg+ga", "fedavg", "Elsewhere"]  # fmt: skip
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert names(page)[0] == "fedavg" and names(page)[-1] == "Elsewhere"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "none" and names(page) == before


def test_sorting_by_keyboard(page: Any) -> None:
    page.locator("#table-0 thead th button").nth(1).focus()
    page.keyboard.press("Enter")
    assert names(page)[0] == "Elsewhere"  # 99.0 at d0
    page.locator("#table-0 thead th button").first.focus()
    page.keyboard.press("Space")
    assert names(page)[0] == "csac"


def test_a_filter_hides_what_does_not_match(page: Any) -> None:
    box = page.locator('input[data-filter="table-0"]')
    box.fill("ppdg 0.2")
    assert names(page) == ["ppdg(lam=0.2)"]
    assert page.locator("#table-0-count").inner_text() == "1 of 7"
    box.fill("")
    assert len(names(page)) == 7
    page.locator('input[data-filter="curves-folds"]').fill("csac")
    assert page.locator("#curves-folds details:visible").count() == 1


def test_the_theme_follows_the_system_until_it_is_switched(page: Any) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert light != dark
    button = page.locator("#theme")
    assert button.inner_text() == "Light theme"
    button.click()
    assert ground() == light and button.inner_text() == "Dark theme"
    page.reload()
    assert ground() == light  # kept
    line = "getComputedStyle(document.querySelector('.panels [style*=\"--s0\"]')).stroke"
    before = page.evaluate(line)
    button.click()
    assert ground() == dark and page.evaluate(line) != before


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_nothing_sticks_out_to_the_side(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.evaluate(
        "Array.from(document.querySelectorAll('.panels svg')).map(s => {"
        "const r = s.getBoundingClientRect(); return [r.width, s.viewBox.baseVal.width]})"
    )
    # Letters of 11 pixels stay letters of 10 and more.
    assert sizes and min(shown / drawn for shown, drawn in sizes) > 0.9


@pytest.mark.parametrize(("width", "first"), [(375, "table"), (1280, "cards")])
def test_on_a_phone_the_table_comes_before_the_cards(page: Any, width: int, first: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    table, cards = (page.locator(s).bounding_box()["y"] for s in ("#table-0", ".facts"))
    assert (table < cards) == (first == "table")


def test_every_dot_has_its_name_next_to_it(page: Any) -> None:
    """The name is within two lines above the dot, and its ends are on both sides of it or at an
    edge of the panel."""
    far = page.evaluate("""() => {
        const svg = document.querySelector('#overview ~ .figures .panels svg');
        const dots = Array.from(svg.querySelectorAll('use')).map(e => e.getBoundingClientRect());
        const names = Array.from(svg.querySelectorAll('text')).map(e => e.getBoundingClientRect());
        const middle = r => [(r.left + r.right) / 2, (r.top + r.bottom) / 2];
        return dots.filter(dot => !names.some(name => {
            const [x, y] = middle(dot), [, b] = middle(name);
            return b < y && y - b < 32 && name.left - 12 <= x && x <= name.right + 12;
        })).length + (dots.length ? 0 : 99);
    }""")
    assert far == 0


def test_folds_open_all_at_once_and_the_citations_can_be_copied(page: Any) -> None:
    page.locator('button[data-open="curves-folds"]').click()
    folds = page.locator("#curves-folds details")
    assert all(fold.get_attribute("open") is not None for fold in folds.all())
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("button[data-copy]").click()
    page.get_by_text("Copied").wait_for(timeout=2000)
    assert "zhang2023ga" in page.evaluate("navigator.clipboard.readText()")


def test_every_control_can_be_reached_and_has_a_name(page: Any) -> None:
    unnamed = page.evaluate(
        "Array.from(document.querySelectorAll('button, input, a')).filter(e => "
        "!(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label'))).length"
    )
    assert unnamed == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_without_javascript_all_is_there(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(address)
    assert opened.locator("#table-0 tbody tr").count() == 7
    assert opened.locator(".panels svg").count() > 10
    assert not opened.locator("#theme").is_visible()
    context.close()


def test_the_file_is_small(address: str) -> None:
    assert Path(address.removeprefix("file://")).stat().st_size < 1_000_000
