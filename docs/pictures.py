"""Draw the guide's pictures anew: what the Python blocks of a page draw is what the page shows.

    python docs/pictures.py

The picture of the performance page is drawn from the committed measurements.
"""

import json
import os
import re
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt

DOCS = Path(__file__).resolve().parent
IMAGES = DOCS / "images" / "guide"
MEASUREMENTS = DOCS.parent / "benchmarks" / "results" / "engines_adult.json"
PAGES = ("auditing", "calibration")


def draw_page(page: str) -> None:
    """Run a page's Python blocks and save the figures they leave open."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = python_blocks(page)
    if page != "auditing":
        blocks = [python_blocks("auditing")[0], *blocks]  # the model of the guide
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in blocks:
                exec(block, namespace)
        finally:
            os.chdir(home)
    for position, number in enumerate(plt.get_fignums(), start=1):
        save(plt.figure(number), f"{page}-{position}")


def python_blocks(page: str) -> list[str]:
    text = (DOCS / "guide" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def draw_costs() -> None:
    """Certificates beside one pass of the model, from the measurements of the performance page."""
    measured = json.loads(MEASUREMENTS.read_text(encoding="utf-8"))["models"][::-1]
    names = [entry["model"] for entry in measured]
    ways = {"black box": "#B8BCC4", "certificate": "#0072B2"}
    figure, ax = plt.subplots(figsize=(8.0, 5.2), layout="constrained")
    for place, (way, colour) in enumerate(ways.items()):
        passes = [entry[way.replace(" ", "")] / entry["native_pass"] for entry in measured]
        label = "asking the model (black box)" if way == "black box" else "the model's own engine"
        bars = ax.barh([i + 0.4 * place for i in range(len(names))], passes, 0.38, color=colour, label=label)
        ax.bar_label(bars, fmt="%.1f", padding=3)
    ax.set_yticks([i + 0.2 for i in range(len(names))], names)
    ax.set(xscale="log", xlabel="passes of the model over the same 10,000 rows")
    ax.spines[["top", "right"]].set_visible(False)
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside upper right", ncols=2, frameon=False)
    save(figure, "costs")


def save(figure: plt.Figure, name: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)
    print(f"docs/images/guide/{name}.png")


if __name__ == "__main__":
    for page in PAGES:
        draw_page(page)
    draw_costs()
