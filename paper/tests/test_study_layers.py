"""Imports of the study point downwards only; tables and figures sit beside the units, so they cannot train.

A module may import from the rows above its own, and from its own package.
"""

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "fragility_paper"

LAYERS: list[set[str]] = [  # lowest first
    {"__init__", "arrays", "library"},
    {"paper_values", "models", "tidy", "table"},
    {"data"},
    {"plan", "training"},
    {"unit", "folders"},
    {"results", "bench"},
    {"tables", "run", "policies"},
    {"findings"},
    {"figures", "reproduction", "baseline_page", "hardening_page", "modes_page", "mode_hardening_page"},
    {"commands"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
READS_ONLY = {
    "results",
    "tables",
    "findings",
    "figures",
    "reproduction",
    "baseline_page",
    "hardening_page",
    "modes_page",
    "mode_hardening_page",
}
TRAINS_OR_AUDITS = {"training", "unit", "run"}

MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in sorted(SOURCE.rglob("*.py"))}


def layer_of(module: str) -> str:
    return module.split(".")[0]


def imported(module: str, package: str) -> set[str]:
    """Modules below ``package`` that ``module`` imports, without the package's name; "" for the package itself."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            inside = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == package else []
            names = inside or [node.module or ""]
        found |= {name.removeprefix(package).lstrip(".") for name in names if f"{name}.".startswith(f"{package}.")}
    return found


def test_imports_point_downwards():
    wrong = [
        f"fragility_paper.{module} imports {name}"
        for module in MODULES
        for name in sorted({layer_of(name) for name in imported(module, "fragility_paper")} - {layer_of(module)})
        if LEVEL[name] >= LEVEL[layer_of(module)]
    ]
    assert not wrong, "not below its own layer"


def test_what_reads_results_never_trains():
    for module in (name for name in MODULES if layer_of(name) in READS_ONLY):
        assert not {layer_of(name) for name in imported(module, "fragility_paper")} & TRAINS_OR_AUDITS, module


def test_the_inside_of_fragility_is_taken_from_one_place():
    """Everything but public names, errors and the terminal goes through fragility_paper.library."""
    for module in (name for name in MODULES if name != "library"):
        assert imported(module, "fragility") <= {"", "base.errors", "cli.terminal"}, module
