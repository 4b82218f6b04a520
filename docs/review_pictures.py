"""Take the guide's pictures of the review workbench anew, over the demo's audit, with the system's Chromium.

python docs/review_pictures.py
"""

import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from report_pictures import IMAGES, browser
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from fragility.cli.demo_audit import run_demo

REVIEWER = "Ana Lima"
KEYS = ("a", "a", "e", "a")  # what she decides about the first cases, each followed by the next
DESK, PHONE = (1280, 1000), (390, 844)
MOVED_CASE, MOVED_FIELD = "378", "credit_amount"  # whose decision one value flips


@contextmanager
def workbench(folder: Path) -> Iterator[str]:
    """Start the workbench as a user does; yields its address."""
    options = ["--model", "model.skops", "--trust", "--data", "test.parquet", "--target", "class", "--no-open"]
    command = [sys.executable, "-m", "fragility", "review", ".", *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def follow(driver: webdriver.Chrome, gesture: str) -> None:
    """Press a key that leads to another page, and wait for it."""
    driver.execute_script("window.left = true")
    ActionChains(driver).send_keys(gesture).perform()
    ready = "return !window.left && document.readyState === 'complete'"
    WebDriverWait(driver, 20).until(lambda d: d.execute_script(ready))


def resize(driver: webdriver.Chrome, size: tuple[int, int]) -> None:
    """Show pages as a screen of this size does."""
    screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)


def take(driver: webdriver.Chrome, name: str, size: tuple[int, int]) -> None:
    """Save what a screen of this size shows."""
    resize(driver, size)
    driver.refresh()
    picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(64).save(IMAGES / f"{name}.png", optimize=True)


def take_fields(driver: webdriver.Chrome, queue: str) -> None:
    """Save what-if on a case with the slider of a field moved to where the decision flips."""
    resize(driver, DESK)
    driver.get(f"{queue}?search={MOVED_CASE}")
    driver.find_element(By.CSS_SELECTOR, "[data-line]").click()
    slider = WebDriverWait(driver, 120).until(
        lambda d: d.find_element(By.CSS_SELECTOR, f"#wi-fields[data-ready] [data-field={MOVED_FIELD}]")
    )
    move = "arguments[0].value = 6000; arguments[0].dispatchEvent(new Event('input'))"
    driver.execute_script(move, slider)
    WebDriverWait(driver, 20).until(lambda d: "flips" in d.find_element(By.ID, "wi-verdict").text)
    driver.execute_script("document.querySelector('.decide').hidden = true")  # it would lie over the card
    card = driver.find_element(By.ID, "whatif")
    Image.open(io.BytesIO(card.screenshot_as_png)).convert("RGB").quantize(64).save(
        IMAGES / "review-fields.png", optimize=True
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = run_demo(Path(place) / "demo-audit").folder
        driver = browser()
        try:
            with workbench(folder) as address:
                driver.get(address)
                asked = WebDriverWait(driver, 20).until(lambda d: d.find_element(By.ID, "name"))  # after a redirect
                asked.send_keys(REVIEWER)
                follow(driver, "\n")
                queue = driver.current_url
                follow(driver, "n")
                for key in KEYS:
                    follow(driver, key)
                case = driver.current_url
                for page, name in ((queue, "review-queue"), (case, "review-case")):
                    driver.get(page)
                    take(driver, name, DESK)
                    take(driver, f"{name}-phone", PHONE)
                take_fields(driver, queue)
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
