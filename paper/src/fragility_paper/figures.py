"""The figures of the study from the tidy results; each is a function from results to a Matplotlib figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fragility_paper import paper_values as paper
from fragility_paper.data import DATASETS
from fragility_paper.models import MODELS
from fragility_paper.plan import Study
from fragility_paper.results import StudyResults
from fragility_paper.table import mean
from fragility_paper.tables.baselines import CROSSED, LABELS, crossed_auroc, label_kinds, score_baselines
from fragility_paper.tables.exposure import stress_values
from fragility_paper.tables.hardening import AUROC, BRITTLE, Pair, pair
from fragility_paper.tables.labels import grid_point
from fragility_paper.tables.modes import LABEL_TITLES, SCORE_TITLES, kinds_of, scores_of
from fragility_paper.tables.quantities import (
    CONFIDENCE,
    PERTURBATION,
    TITLES,
    datasets_of,
    is_certificate,
    models_of,
    oriented_values,
    ranking_values,
    winners,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CERTIFICATE_COLOUR, BASELINE_COLOUR, PAPER_COLOUR = "#b2182b", "#4575b4", "#878787"
EXPOSURE_COLOUR = "#7b3294"
FAMILY_COLOURS = {"linear": "#878787", "forest": "#1b7837", "boosting": "#b2182b", "neural": "#4575b4"}
DPI = 110
RANKING_KEY = (
    "bar: mean over units, baselines oriented; dots: units; black line: mean as the paper ranks; "
    "diamond: the paper's value"
)


def _canvas(
    columns: int = 1, rows: int = 1, *, width: float, height: float, sharey: bool = False
) -> tuple[Figure, Any]:
    # A figure of its own, not pyplot's: nothing global is opened, chosen or left behind.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=sharey)


def _short(name: str) -> str:
    return TITLES[name].split(" (")[0]


def overview(results: StudyResults) -> Figure:
    """What a certificate sees: mean collapse and flips along the path, by data set, confident rows."""
    figure, axes = _canvas(2, width=9.5, height=3.6)
    for name in datasets_of(results):
        for axis, metric in zip(axes[0], ("collapse", "flipped"), strict=True):
            steps = results.pick("path", rows="confident", metric=metric, dataset=name).groupby("step")["value"].mean()
            axis.plot(steps.index, steps.to_numpy(), marker="o", markersize=3, label=DATASETS[name].title)
    axes[0, 0].set_ylabel("share of the margin lost, $c_k$ (mean)")
    axes[0, 1].set_ylabel("share of predictions that flipped")
    for axis in axes[0]:
        axis.set_xlabel("groups removed, k")
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
    axes[0, 1].legend(fontsize=8, loc="upper left", ncols=2)
    figure.suptitle("Confident predictions while their evidence is removed, strongest group first", fontsize=11)
    return figure


def heatmap(results: StudyResults) -> Figure:
    """AUROC of max-softmax (oriented), of FDS and of exposure for every data set and model."""
    datasets, models = datasets_of(results), models_of(results)
    titles = {"max_softmax": "Max-softmax, oriented", "cfc_fds": "CFC-FDS", "cfc_exposure": "Exposure"}
    panels = [(score, titles[score]) for score in results.scores(tuple(titles))]
    figure, axes = _canvas(len(panels), width=5.25 * len(panels), height=4.2)
    for axis, (score, title) in zip(axes[0], panels, strict=True):
        cells = oriented_values(results, score).groupby(["model", "dataset"]).mean().unstack()
        grid = cells.reindex(index=models, columns=datasets).to_numpy(dtype=float)
        image = axis.imshow(grid, vmin=0.3, vmax=1.0, cmap="RdYlBu_r", aspect="auto")
        _write_cells(axis, grid)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(datasets)), [DATASETS[name].title for name in datasets], rotation=35, ha="right")
        axis.set_yticks(range(len(models)), [MODELS[name].title for name in models])
        axis.set_xlabel("data set")
    axes[0, 0].set_ylabel("model")
    figure.colorbar(image, ax=axes[0].tolist(), label="brittle-case AUROC")
    return figure


def crossed(results: StudyResults) -> Figure:
    """AUROC of exposure, FDS and random order for every baseline of the scores and every kind of labels."""
    baselines, labels = score_baselines(results), label_kinds(results)
    figure, axes = _canvas(len(CROSSED), width=4.6 * len(CROSSED), height=3.2)
    for axis, (score, title) in zip(axes[0], CROSSED.items(), strict=True):
        grid = np.array([[mean(crossed_auroc(results, score, b, kind)) for kind in labels] for b in baselines])
        image = axis.imshow(grid, vmin=0.3, vmax=1.0, cmap="RdYlBu_r", aspect="auto")
        _write_cells(axis, grid)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(labels)), [LABELS[kind].strip("`") for kind in labels], rotation=35, ha="right")
        axis.set_yticks(range(len(baselines)), baselines)
        axis.set_xlabel("labels")
    axes[0, 0].set_ylabel("scores under")
    figure.colorbar(image, ax=axes[0].tolist(), label="brittle-case AUROC")
    return figure


def modes(results: StudyResults) -> Figure:
    """AUROC of exposure to every failure mode, and of other scores, against labels of every kind of failure."""
    kinds, scores = kinds_of(results), scores_of(results)
    grid = np.array([[mean(stress_values(results, kind, score=score)) for kind in kinds] for score in scores])
    figure, axes = _canvas(width=8.6, height=4.4)
    axis = axes[0, 0]
    image = axis.imshow(grid, vmin=0.3, vmax=1.0, cmap="RdYlBu_r", aspect="auto")
    _write_cells(axis, grid)
    axis.set_xticks(range(len(kinds)), [LABEL_TITLES[kind] for kind in kinds], rotation=25, ha="right")
    axis.set_yticks(range(len(scores)), [SCORE_TITLES[score].replace("`", "") for score in scores])
    axis.set_xlabel("labels")
    figure.colorbar(image, ax=axis, label="brittle-case AUROC")
    return figure


def _write_cells(axis: Any, grid: np.ndarray) -> None:
    for row, column in np.ndindex(grid.shape):
        value = grid[row, column]
        text = "–" if math.isnan(value) else f"{value:.2f}"
        dark = not math.isnan(value) and (value > 0.9 or value < 0.42)
        axis.text(column, row, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "black")


def degradation(results: StudyResults) -> Figure:
    """Mean support left along the path: best model by AUROC against the most stable one, per data set."""
    chosen = winners(results, "support")
    columns = 4
    figure, axes = _canvas(columns, math.ceil(len(chosen) / columns), width=11, height=5.4, sharey=True)
    flat = axes.ravel()
    for axis, (name, (best, calm)) in zip(flat, chosen.items(), strict=False):
        _draw_support(axis, results, name, _named_winners(best, calm))
    for axis in flat[len(chosen) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("support left, 1 - $c_k$ (mean)")
    return figure


def _draw_support(axis: Any, results: StudyResults, dataset: str, models: tuple[tuple[str, str, str], ...]) -> None:
    for model, colour, words in models:
        steps = results.pick("path", rows="confident", metric="collapse", dataset=dataset, model=model)
        left = 1 - steps.groupby("step")["value"].mean()
        label = f"{MODELS[model].title} ({words})"
        axis.plot(left.index, left.to_numpy(), color=colour, marker="o", markersize=3, label=label)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_title(DATASETS[dataset].title, fontsize=10)
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
    axis.set_xlabel("groups removed, k")


def _named_winners(best: str, calm: str) -> tuple[tuple[str, str, str], ...]:
    if best == calm:
        return ((best, CERTIFICATE_COLOUR, "best in both"),)
    return (best, CERTIFICATE_COLOUR, "best AUROC"), (calm, BASELINE_COLOUR, "lowest RCMA")


GRID_CENTRE = {"severity": 0.3, "tau_p": 0.90, "tau_kappa": 0.50}
GRID_PANELS = (
    ("tau_p", "confidence threshold", (0.85, 0.90, 0.95)),
    ("tau_kappa", "collapse threshold", (0.25, 0.50, 0.75)),
    ("severity", "stress severity", (0.1, 0.3, 0.5)),
)
GRID_LINES = (
    (CERTIFICATE_COLOUR, "CFC-FDS"),
    (EXPOSURE_COLOUR, "exposure"),
    (BASELINE_COLOUR, "Max-softmax, oriented"),
    (PAPER_COLOUR, "brittle share"),
)


def threshold_sensitivity(results: StudyResults) -> Figure:
    """AUROC of FDS, exposure and oriented max-softmax, and the brittle share, as thresholds and severity move."""
    figure, axes = _canvas(3, width=11, height=3.6)
    for axis, (moved, label, values) in zip(axes[0], GRID_PANELS, strict=True):
        for rule, dash in (("expected", "-"), ("any", "--")):
            points = [grid_point(results, rule, **{**GRID_CENTRE, moved: value}) for value in values]
            for line, (colour, words) in zip(zip(*points, strict=True), GRID_LINES, strict=True):
                if not np.isnan(line).all():  # results from before exposure was recorded
                    axis.plot(values, line, dash, color=colour, marker="o", label=f"{words}, rule {rule}")
        axis.set_xlabel(label)
        axis.set_ylim(0, 1)
        axis.set_xticks(values)
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("AUROC, or share of rows")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


MITIGATION_PANELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("mean RCMA, reading current", "certificate", {"metric": "rcma", "rows": "any", "reading": "current"}),
    ("mean RCMA, reading support", "certificate", {"metric": "rcma", "rows": "any", "reading": "support"}),
    ("brittle share of confident rows", "labels", {"metric": "brittle_share", "rule": "expected"}),
)


def mitigation(results: StudyResults) -> Figure:
    """ResMLP against FR-ResMLP: RCMA in two readings and the brittle share, per data set."""
    figure, axes = _canvas(3, width=11, height=3.6)
    names = datasets_of(results)
    x = np.arange(len(names))
    for axis, (title, analysis, where) in zip(axes[0], MITIGATION_PANELS, strict=True):
        for shift, model, colour in ((-0.2, "resmlp", BASELINE_COLOUR), (0.2, "fr_resmlp", CERTIFICATE_COLOUR)):
            values = results.per_unit(analysis, model=model, **where).groupby("dataset").mean().reindex(names)
            axis.bar(x + shift, values.to_numpy(dtype=float), 0.38, color=colour, label=MODELS[model].title)
            if where.get("reading") == "current":
                printed = [paper.MAIN_RCMA[model][name] for name in names]
                axis.plot(x + shift, printed, "k_", markersize=9, label="paper" if shift > 0 else None)
        axis.set_xticks(x, [DATASETS[name].title for name in names], rotation=35, ha="right")
        axis.set_ylabel(title)
        axis.grid(axis="y", alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    return figure


def ranking_comparison(results: StudyResults) -> Figure:
    """Every score's mean AUROC as the paper ranks and oriented, with the paper's value and the ceiling."""
    figure, axes = _canvas(width=8.6, height=4.8)
    axis = axes[0, 0]
    certificate = ("inverse_flip_budget", "inverse_threshold", "cfc_rcma", "cfc_fds", "cfc_exposure")
    scores = results.scores((*CONFIDENCE, *PERTURBATION, *certificate))
    place = np.arange(len(scores))[::-1]
    for y, score in zip(place, scores, strict=True):
        _draw_score(axis, results, y, score)
    ceiling = mean(results.per_unit("labels", metric="ceiling", rule="expected"))
    axis.axvline(ceiling, color="black", linestyle=":", linewidth=1)
    axis.text(ceiling, len(scores) - 0.4, "label-noise ceiling ", ha="right", fontsize=8)
    axis.axvline(0.5, color="grey", linewidth=0.8)
    axis.set_yticks(place, [_short(score) for score in scores])
    axis.set_xlim(0, 1.02)
    axis.set_xlabel("brittle-case AUROC\n" + RANKING_KEY, fontsize=9)
    return figure


def _draw_score(axis: Any, results: StudyResults, y: int, score: str) -> None:
    """A bar at height ``y``, its units as dots, and where it applies the mean as the paper ranks and its value."""
    values = oriented_values(results, score)
    axis.barh(y, mean(values), 0.62, color=CERTIFICATE_COLOUR if is_certificate(score) else BASELINE_COLOUR, alpha=0.85)
    jitter = np.linspace(-0.22, 0.22, len(values))
    axis.plot(values.to_numpy(), y + jitter, ".", color="black", alpha=0.25, markersize=2.5)
    if not is_certificate(score):
        axis.plot(mean(ranking_values(results, score)), y, "|", color="black", markersize=14, markeredgewidth=2)
    if score in paper.ATTRIBUTION:
        axis.plot(paper.ATTRIBUTION[score], y, "D", color=PAPER_COLOUR, markeredgecolor="black", markersize=6)


def hardening(results: StudyResults) -> Figure:
    """Brittle share of confident rows, plain and hardened, and what it did to the AUROC, by data set and model."""
    brittle, area = pair(results, BRITTLE), pair(results, AUROC)
    names = datasets_of(results)
    figure, axes = _canvas(4, math.ceil(len(names) / 4), width=12, height=6.5, sharey=True)
    flat = axes.ravel()
    for axis, name in zip(flat, names, strict=False):
        _draw_hardened(axis, brittle.of("dataset", (name,)), area.of("dataset", (name,)), models_of(results))
        axis.set_title(DATASETS[name].title, fontsize=10)
    for axis in flat[len(names) :]:
        axis.set_axis_off()
    figure.suptitle(
        "Brittle share of confident rows: plain (ring), hardened (disc); at the right the change of AUROC", fontsize=11
    )
    return figure


def _draw_hardened(axis: Any, brittle: Pair, area: Pair, models: Sequence[str]) -> None:
    means = [values.groupby("model").mean() for values in (brittle.plain, brittle.hardened, area.hardened - area.plain)]
    for place, model in enumerate(models):
        if all(model in values.index for values in means):
            plain, hardened, gained = (float(values[model]) for values in means)
            colour = FAMILY_COLOURS[MODELS[model].family]
            axis.plot([plain, hardened], [place, place], "-", color=colour, linewidth=1.5)
            axis.plot(plain, place, "o", color=colour, markersize=6, markerfacecolor="white")
            axis.plot(hardened, place, "o", color=colour, markersize=6)
            axis.text(1.03, place, f"{gained:+.3f}", fontsize=7.5, va="center", color=colour)
    axis.set_yticks(range(len(models)), [MODELS[model].title for model in models])
    axis.set_ylim(len(models) - 0.5, -0.5)
    axis.set_xlim(-0.03, 1.3)
    axis.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0])
    axis.set_xlabel("brittle share of confident rows")
    axis.grid(alpha=0.3, axis="x")


Draw = Callable[[StudyResults], "Figure"]
RANKING_FIGURES: Mapping[str, Draw] = {
    "overview": overview,
    "heatmap": heatmap,
    "degradation": degradation,
    "threshold-sensitivity": threshold_sensitivity,
    "mitigation": mitigation,
    "ranking-comparison": ranking_comparison,
}
FIGURES: Mapping[Study, Mapping[str, Draw]] = {
    "ranking": RANKING_FIGURES,
    "baselines": {"crossed": crossed},
    "hardening": {"hardening": hardening},
    "modes": {"modes": modes},
    "mode-hardening": {},
}


def write_figures(results: StudyResults, folder: str | Path) -> list[Path]:
    """Draw every figure into ``folder`` as PNG."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in FIGURES[results.study].items():
        path = place / f"{name}.png"
        draw(results).savefig(path, metadata={"Software": None}, bbox_inches="tight")
        written.append(path)
    return written
