"""Take the guide's pictures of the report anew, from the demo's report, with the system's Chromium.

python docs/report_pictures.py
"""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver

from fragility.demo import run_demo

IMAGES = Path(__file__).resolve().parent / "images"
SHOTS = {"report-desktop": ("finding", 1040, 1500, 1.25), "report-phone": ("finding", 390, 1180, 1.5)}


def browser() -> webdriver.Chrome:
    """Return a browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver"))))


def take(driver: webdriver.Chrome, page: Path, section: str, width: int, height: int, scale: float) -> Image.Image:
    """Return a picture of the page from a section on."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())
    driver.execute_script(f"window.scrollTo(0, document.getElementById('{section}').offsetTop)")
    return Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = run_demo(Path(folder) / "demo-audit").page
        driver = browser()
        try:
            for name, shot in SHOTS.items():
                picture = take(driver, page, *shot)
                picture.quantize(64).save(IMAGES / f"{name}.png", optimize=True)
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
