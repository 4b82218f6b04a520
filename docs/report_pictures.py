"""Take the guide's pictures of the report anew, from the demo's audit, with the system's Chromium.

python docs/report_pictures.py
"""

import io
import shutil
import tempfile
from pathlib import Path

import pandas as pd
from PIL import Image
from selenium import webdriver

import fragility as fg
from fragility.cli.demo_audit import run_demo

IMAGES = Path(__file__).resolve().parent / "images"
# The first screens as a window and a phone show them, and one section: (section, width, height, scale)
SHOTS = {
    "report-desktop": (None, 1280, 900, 1.0),
    "report-phone": (None, 390, 844, 1.5),
    "report-by": ("by-1", 1040, 540, 1.0),
    "report-modes": ("modes", 1040, 980, 1.0),
}


def browser() -> webdriver.Chrome:
    """Return a browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver"))))


def take(
    driver: webdriver.Chrome, page: Path, section: str | None, width: int, height: int, scale: float
) -> Image.Image:
    """Return a picture of the page from its top, or from a section on."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())
    if section is not None:
        driver.execute_script(f"window.scrollTo(0, document.getElementById('{section}').offsetTop)")
    return Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")


def write_report(folder: Path) -> Path:
    """Return the report on the demo's audit, as a validator would ask for it."""
    run_demo(folder)
    rows = pd.read_parquet(folder / "test.parquet")
    report = fg.Report.of(
        fg.open_audit(folder),
        name="credit model",
        labels=rows["class"].to_dict(),
        rows=rows,
        by=["age:25,40,60", "purpose"],
        author="M. Okafor, model validation",
        purpose="annual review",
        date="2026-11-16",
    )
    return Path(report.save(folder / "report.html"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(Path(folder) / "demo-audit")
        driver = browser()
        try:
            for name, shot in SHOTS.items():
                picture = take(driver, page, *shot)
                picture.quantize(64).save(IMAGES / f"{name}.png", optimize=True)
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
