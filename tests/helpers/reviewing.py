"""A reviewer in a real browser: the few gestures that tests of the workbench make."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import axe_violations, chromium, prefer, resize

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

DESK, PHONE = (1280, 900), (360, 740)


class Browser:
    """A browser with the few gestures that these tests make."""

    def __init__(self, driver, address: str, size: tuple[int, int], dark: bool) -> None:
        self.driver, self.address = driver, address
        self.here = address.split("/?")[0]
        resize(driver, *size)
        prefer(driver, "dark" if dark else "light")

    def enter(self, name: str) -> None:
        self.driver.get(self.address)
        self.find("#name").send_keys(name)
        self.follow(lambda: self.find("#name").submit())

    def find(self, selector: str):
        return WebDriverWait(self.driver, 20).until(lambda d: d.find_element(By.CSS_SELECTOR, selector))

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def all(self, selector: str) -> list:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def follow(self, gesture) -> None:
        """Make a gesture that leads to another page, and wait for it."""
        self.driver.execute_script("window.left = true")
        gesture()
        ready = "return !window.left && document.readyState === 'complete'"
        WebDriverWait(self.driver, 20).until(lambda d: d.execute_script(ready))

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def hold(self, key: str, times: int) -> None:
        """Hold a key down: after the first press, the system repeats it many times a second."""
        event = {"key": key, "text": key, "code": f"Key{key.upper()}", "windowsVirtualKeyCode": ord(key.upper())}
        for number in range(times):
            self.driver.execute_cdp_cmd(
                "Input.dispatchKeyEvent", {**event, "type": "keyDown", "autoRepeat": number > 0}
            )
            time.sleep(0.05)
        self.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {**event, "type": "keyUp"})

    def choose(self, selector: str, place: int) -> None:
        """Choose an option of a list."""
        Select(self.find(selector)).select_by_index(place)

    def focused(self, expression: str):
        return self.driver.execute_script(f"return document.activeElement.{expression}")

    def until(self, holds) -> None:
        WebDriverWait(self.driver, 20).until(lambda d: holds())

    def go(self, path: str) -> None:
        self.driver.get(self.here + path)

    def findings(self) -> list[str]:
        return axe_violations(self.driver)

    def fits(self) -> bool:
        return bool(self.driver.execute_script("return document.documentElement.scrollWidth <= innerWidth"))

    def check_quiet(self) -> None:
        """No error in the console, and no request to anywhere but the workbench."""
        loud = [entry for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]
        assert loud == [], loud
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        elsewhere = [
            url
            for url in asked
            if not url.startswith((self.here + "/", "data:", "chrome:", "chrome-untrusted:", "about:"))
        ]
        assert asked and elsewhere == [], elsewhere


@contextmanager
def browser(address: str, folder: Path, size: tuple[int, int] = DESK, dark: bool = False) -> Iterator[Browser]:
    """A browser with a profile of its own in this folder."""
    with chromium(f"--user-data-dir={folder}") as driver:
        yield Browser(driver, address, size, dark)
