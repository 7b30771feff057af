"""The page of an audit, opened from disk in a real browser."""

import base64
import json
import os
import shutil

import pytest

from leakgauge import audit

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="chromium and chromedriver (Debian: chromium-driver) are not installed, so no browser opened the page",
)

DOCUMENT = {
    "model": {"name": "lenet", "options": {"classes": 10}},
    "data": {"name": "digits"},
    "training": {"sends": "gradient", "samples": 1},
    "audit": {"attacks": [{"name": "inverting_gradients", "steps": 20}, {"name": "idlg", "steps": 8}], "clients": 2},
    "defence": [{}, {"title": "noise", "chain": [{"name": "gaussian_noise", "sigma": 0.5}]}],
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    audit(DOCUMENT, folder, fail_if=["recovered > 0.05"])
    return folder / "audit.html"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The page of an audit of a table with many columns."""
    folder = tmp_path_factory.mktemp("table")
    columns = [f"column {place}" for place in range(20)]
    rows = [",".join([*(f"{(row * place) % 13}.5" for place in range(20)), "abc"[row % 3]]) for row in range(30)]
    (folder / "mine.csv").write_text("\n".join([",".join([*columns, "class"]), *rows]))
    audit(
        {
            "model": {"name": "mlp", "options": {"hidden": [24, 24]}},
            "data": {"csv": str(folder / "mine.csv"), "options": {"target": "class"}},
            "training": {"sends": "gradient", "samples": 3},
            "audit": {"attacks": ["two_spans"], "clients": 1},
        },
        folder,
    )
    return folder / "audit.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="the extra 'test' brings selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (
        "headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):  # fmt: skip
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, page):
    browser.get_log("browser")
    browser.get_log("performance")
    browser.set_window_size(1280, 900)
    browser.get(page.as_uri())
    return browser


def screenshot(browser, name):
    """Write a screenshot to the folder LEAKGAUGE_SCREENSHOTS, if that is set."""
    if folder := os.environ.get("LEAKGAUGE_SCREENSHOTS"):
        whole = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        with open(os.path.join(folder, f"{name}.png"), "wb") as file:
            file.write(base64.b64decode(whole["data"]))


def test_every_picture_is_there_and_decoded(opened):
    sizes = opened.execute_script("return [...document.images].map(one => [one.complete, one.naturalWidth])")
    assert len(sizes) == 3  # two defences, and the course of the attacks
    assert all(complete and width > 100 for complete, width in sizes)
    screenshot(opened, "desktop")


def column(browser, name):
    return browser.execute_script(
        """const tables = [...document.querySelectorAll("table")];
        const table = tables.find(one => [...one.tHead.rows[0].cells].some(cell => cell.textContent === "psnr"));
        const at = [...table.tHead.rows[0].cells].findIndex(one => one.textContent === arguments[0]);
        return [...table.tBodies[0].rows].map(row => row.cells[at].textContent)""",
        name,
    )


def test_the_table_sorts_up_and_down_by_mouse_and_by_key(opened):
    tables = opened.find_elements("css selector", "table")
    table = next(one for one in tables if any(head.text == "psnr" for head in one.find_elements("css selector", "th")))
    heads = {one.text: one for one in table.find_elements("css selector", "th")}

    def numbers():
        return [float(text.split()[0].rstrip(",")) for text in column(opened, "psnr")]

    before = numbers()
    assert len(set(before)) > 2
    heads["psnr"].click()
    assert numbers() == sorted(before)
    assert heads["psnr"].get_attribute("aria-sort") == "ascending"
    heads["psnr"].send_keys("\ue007")  # Enter
    assert numbers() == sorted(before, reverse=True)
    heads["attack"].click()
    assert column(opened, "attack") == sorted(column(opened, "attack"))
    assert heads["psnr"].get_attribute("aria-sort") == "none"


def test_nothing_is_logged_and_no_request_leaves_the_page(opened, page):
    opened.find_elements("css selector", "th")[0].click()
    assert opened.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    requested = {one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"}
    assert page.as_uri() in requested
    assert all(address == page.as_uri() or address.startswith("data:") for address in requested)


def test_a_phone_shows_it_without_scrolling_sideways(opened):
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        opened.refresh()
        assert opened.execute_script("return innerWidth") == 390
        assert opened.execute_script("return document.documentElement.scrollWidth") == 390
        assert opened.execute_script("return [...document.images].every(one => one.clientWidth <= 390)")
        screenshot(opened, "phone")
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_follows_the_colour_scheme_and_prints(opened):
    paper = "return getComputedStyle(document.body).backgroundColor"
    papers = {}
    for scheme in ("light", "dark"):
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
        papers[scheme] = opened.execute_script(paper)
    assert papers == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}
    screenshot(opened, "dark")
    printed = opened.execute_cdp_cmd("Page.printToPDF", {})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")


def test_rows_of_a_table_stand_together_and_fit_the_window(browser, table):
    browser.get(table.as_uri())
    lines = "return [...document.querySelectorAll('table.grouped tbody tr')].map(row => row.cells[1].textContent)"
    assert browser.execute_script(lines) == ["true", "rebuilt", "guess"] * 3
    browser.execute_script("document.querySelector('table.grouped th').click()")
    assert browser.execute_script(lines) == ["true", "rebuilt", "guess"] * 3
    marks = browser.execute_script(
        """const colour = cell => getComputedStyle(cell).backgroundColor;
        return [...document.querySelectorAll("td.back")].map(cell => [colour(cell), colour(cell.parentNode)])"""
    )
    assert len(marks) == 3 * 21  # every value of three rows, and their classes
    assert all(cell != row for cell, row in marks)
    for width in (1280, 500):
        browser.set_window_size(width, 900)
        assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"), width
        screenshot(browser, f"table-{width}")
