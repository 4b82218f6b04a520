"""The system's Chromium, without a window, for tests that look at pages as a reader's browser shows them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--disable-dev-shm-usage", "--disable-extensions"),
)


AXE = Path(__file__).with_name("axe-core") / "axe.min.js"


@contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    """A driver of the system's browser; a test that needs an absent one skips, with the reason."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for argument in (*ARGUMENTS, *arguments):
        options.add_argument(argument)
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield found
    finally:
        found.quit()


def resize(driver: Any, width: int, height: int = 900) -> None:
    """Show pages as a window or a phone of this width does."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(driver: Any, scheme: str) -> None:
    """Ask for light or dark pages."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def axe_violations(driver: Any) -> list[str]:
    """What axe-core finds wrong with the page, in words; its version stands at the head of its file."""
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    found = driver.execute_async_script("const done = arguments[0]; axe.run().then(done, (e) => done(String(e)));")
    assert isinstance(found, dict), found
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in found["violations"]
    ]
