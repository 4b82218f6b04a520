"""Imports point downwards only, and optional libraries stay optional.

The list below is the architecture: a module may import from the rows above its own, and from its own package.
"""

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import fragility

SOURCE = Path(__file__).resolve().parents[1] / "src" / "fragility"

LAYERS: list[set[str]] = [  # lowest first; the names are those of packages and of the few modules beside them
    {"version"},
    {"base"},
    {"scores", "pages"},  # how results are written
    {"models"},
    {"evidence"},
    {"protocol"},
    {"engines"},
    {"questions"},  # what can be asked of rows through an engine
    {"parity", "blocks"},  # what certificates say
    {"audits"},  # certificates, in memory and in folders
    {"tables"},
    {"auditing"},
    {"verification"},
    {"analysis"},
    {"deciding", "trust", "gate"},
    {"report"},
    {"packing"},
    {"integrations"},
    {"apps"},
    {"__init__"},  # the door, which names the modules below and loads them when they are asked for
    {"cli"},  # users of the door
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Libraries that a plain install does not have, and the only modules that may name them outside a function.
OPTIONAL = {"torch", "safetensors", "numba", "xgboost", "lightgbm", "catboost", "shap", "polars", "onnx", "onnxruntime"}
OPTIONAL |= {"ray", "pyspark", "securesystemslib", "cryptography", "fastapi", "uvicorn", "starlette", "duckdb"}
OPTIONAL |= {"mlflow", "yaml", "treelite", "interpret", "prometheus_client"}
LAZY = OPTIONAL | {
    "matplotlib",
    "pydantic",
    "pydantic_core",
    "skops",
}  # slow to import, and not needed by most commands
MAY_IMPORT_TORCH = {"engines.neural", "engines.neural_states", "analysis.resmlp.network"}
MAY_NAME_TORCH = MAY_IMPORT_TORCH | {"models.outputs", "models.loading"}  # inside a function: torch modules
MAY_NAME_A_PLATFORM = {"ray": {"auditing.ray"}, "pyspark": {"auditing.spark"}, "py4j": {"auditing.spark"}}
MAY_NAME_A_PLATFORM |= {"mlflow": {"models.mlflow_models", "integrations.mlflow_evaluator"}}
MAY_IMPORT_MLFLOW = {"integrations.mlflow_evaluator"}  # loaded by MLflow itself, through its entry point
MAY_IMPORT_NUMBA = {"engines.kernels.compiling"}
# A web framework, DuckDB; loaded by one command.
MAY_IMPORT_WEB = {f"apps.review.{name}" for name in ("app", "cases", "desk", "queries")}
MAY_IMPORT_WEB |= {"apps.server", "apps.serving.app", "apps.serving.batching"}  # and Prometheus
# Loaded by functions of the engine, since they load numba.
LOADED_WHEN_USED = {
    "engines.kernels",
    *(f"engines.trees.{name}" for name in ("scoring", "values", "pieces", "tables", "boxes")),
}
LOADED_WHEN_USED |= {"engines.wrapped.members"}

MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in sorted(SOURCE.rglob("*.py"))}


def layer_of(module: str) -> str:
    return module.split(".")[0]


class Import(NamedTuple):
    name: str  # absolute and dotted
    line: int
    late: bool  # inside a function
    for_types: bool  # in a TYPE_CHECKING block


def imported_names(node: ast.AST, module: str) -> list[str]:
    """Absolute dotted names that one import statement asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.level:
            parents = ["fragility", *module.split(".")][: -node.level]
            base = ".".join([*parents, *([node.module] if node.module else [])])
        else:
            base = node.module or ""
        return [base] + [f"{base}.{alias.name}" for alias in node.names]
    return []


@cache
def read_module(module: str) -> tuple[list[Import], set[str]]:
    """Return the imports of a module, and the strings in it that name modules of this package."""
    imports, strings = list[Import](), set[str]()

    def visit(node: ast.AST, late: bool, for_types: bool) -> None:
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for_types = for_types or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        imports.extend(Import(name, node.lineno, late, for_types) for name in imported_names(node, module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("fragility."):
            strings.add(node.value.rstrip("."))
        for child in ast.iter_child_nodes(node):
            visit(child, late, for_types)

    visit(ast.parse(MODULES[module].read_text(encoding="utf-8")), False, False)
    return imports, strings


@cache
def own_imports(module: str) -> set[str]:
    """Modules of this package that `module` imports, anywhere in the file, without the leading package name.

    A string that names a module counts: `import_module("fragility.report")` is an import like any other.
    """
    imports, strings = read_module(module)
    own = f"fragility.{module}".rpartition(".")[0]  # a package may ask for the data files that lie in it
    names = {one.name for one in imports} | (strings - {own})
    inside = {name.removeprefix("fragility.") for name in names if name.startswith("fragility.")}
    return {name for name in inside if name in MODULES or f"{name}.__init__" in MODULES}


def libraries(module: str) -> set[str]:
    """Top-level packages that a module imports, anywhere in the file."""
    return {one.name.split(".")[0] for one in read_module(module)[0]}


def test_every_module_has_a_layer():
    assert not {layer_of(module) for module in MODULES} - set(LEVEL), f"add it to LAYERS in {Path(__file__).name}"


def test_imports_point_downwards():
    wrong = [
        f"fragility.{module} imports {name}"
        for module in MODULES
        for name in sorted(own_imports(module))
        if layer_of(name) != layer_of(module)
        and LEVEL.get(layer_of(name), len(LAYERS)) >= LEVEL.get(layer_of(module), 0)
    ]
    assert not wrong, "not below its own layer"


PACKAGES = sorted({".".join(module.split(".")[:-1]) for module in MODULES if "." in module})


def test_the_rooms_of_a_package_have_an_order():
    """Within a package imports point one way as well: no module reaches itself through others."""
    for package in PACKAGES:
        inside = {name for name in MODULES if name.startswith(f"{package}.") and not name.endswith("__init__")}
        uses = {name: own_imports(name) & inside - {name} for name in inside}
        try:
            list(graphlib.TopologicalSorter(uses).static_order())
        except graphlib.CycleError as error:
            pytest.fail(f"fragility.{package}: {' -> '.join(reversed(error.args[1]))} imports itself")
        asking = [name for name in inside if package in own_imports(name)]
        assert not asking, f"rooms of {package} import their own package's door"


def test_no_function_level_import_of_our_own_modules():
    """Such an import hides a cycle; the command line is above all others, and imports late to answer soon."""
    optional = tuple(f"fragility.{name}" for name in MAY_IMPORT_TORCH | LOADED_WHEN_USED)  # they import such a library
    hidden = [
        f"fragility.{module}, line {one.line}: {one.name}"
        for module in MODULES
        if layer_of(module) != "cli"
        for one in read_module(module)[0]
        if one.late and one.name.startswith("fragility.")
        if not any(one.name == name or one.name.startswith(f"{name}.") for name in optional)
        if f"{one.name.removeprefix('fragility.')}.__init__" not in MODULES  # the package of the module imported
    ]
    assert not hidden, "a module imports its own package inside a function"


def test_optional_libraries_are_imported_lazily():
    eager = {
        (module, one.name.split(".")[0])
        for module in MODULES
        for one in read_module(module)[0]
        if not one.late and not one.for_types
    }
    web = {"fastapi", "starlette", "uvicorn", "duckdb", "prometheus_client"}
    allowed = {(module, library) for module in MAY_IMPORT_TORCH for library in ("torch", "safetensors")}
    allowed |= {(module, "numba") for module in MAY_IMPORT_NUMBA}
    allowed |= {(module, "mlflow") for module in MAY_IMPORT_MLFLOW}
    allowed |= {(module, library) for module in MAY_IMPORT_WEB for library in web}
    assert not {(module, library) for module, library in eager if library in LAZY} - allowed


def test_only_the_named_modules_touch_torch_numba_and_the_platforms():
    rooms = {"torch": MAY_NAME_TORCH, "numba": MAY_IMPORT_NUMBA, **MAY_NAME_A_PLATFORM}
    naming = {library: {module for module in MODULES if library in libraries(module)} for library in rooms}
    assert not {library: modules - rooms[library] for library, modules in naming.items() if modules - rooms[library]}


SLOW = LAZY | {"numpy", "pandas", "pyarrow", "scipy", "sklearn", "narwhals", "joblib"}


def loaded_by(code: str) -> set[str]:
    """Top-level packages that are loaded after `code` in a fresh interpreter."""
    report = "import sys; print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    words = [sys.executable, "-c", f"import atexit\natexit.register(lambda: exec({report!r}))\n{code}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("module", ["fragility", "fragility.base.libraries", "fragility.cli", "fragility.__main__"])
def test_importing_the_package_and_the_command_line_is_cheap(module):
    loaded = loaded_by(f"import {module}")
    assert "fragility" in loaded and not loaded & SLOW
    if module == "fragility":
        assert "rich" not in loaded and "typer" not in loaded


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["audit", "--help"], ["protocol", "write", "--help"], ["audit", "--trian"], ["adit"]],
    ids=" ".join,
)
def test_help_and_mistyped_words_are_answered_without_loading_the_library(words):
    loaded = loaded_by(f"from fragility.cli import main; main({words!r})")
    assert "typer" in loaded and not loaded & SLOW - {"pydantic", "pydantic_core"}  # which typer itself needs


@pytest.mark.slow
def test_all_public_names_together_load_nothing_optional():
    loaded = loaded_by("import fragility; [getattr(fragility, name) for name in fragility.__all__]")
    # polars and others may be probed by narwhals or pandas only when they are already loaded
    assert "sklearn" in loaded and not loaded & LAZY


def test_the_door_lists_each_public_name_alike():
    """The names editors see and the names of `from fragility import *`."""
    tree = ast.parse((SOURCE / "__init__.pyi").read_text(encoding="utf-8"))
    aliases = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for alias in aliases)  # else a type checker takes it for private
    assert fragility.__all__ == sorted(fragility.__all__) == dir(fragility)
    assert fragility.__all__ == sorted(alias.name for alias in aliases)


def test_no_module_has_the_name_of_a_public_function():
    """`fragility.audit` is the function, whatever was imported before."""
    assert not {module.split(".")[0] for module in MODULES} & set(fragility.__all__)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="No fragility attribute audti"):
        fragility.audti  # noqa: B018


REPOSITORY = SOURCE.parents[1]
TESTS = {
    str(path.relative_to(REPOSITORY)): path
    for folder in (REPOSITORY / "tests", REPOSITORY / "paper" / "tests")
    for path in sorted(folder.rglob("*.py"))
}


def test_what_tests_share_lies_in_helpers():
    """A test that is imported by another runs twice or not at all, and cannot be moved."""
    for place, path in TESTS.items():
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in asked(node)}
        parts = {part for name in names for part in name.split(".")}
        assert not {part for part in parts if part.startswith("test_") or part == "conftest"}, place
        if path.name.startswith("naive"):
            assert not {name for name in names if name.split(".")[0] == "fragility"}, (
                f"{place}: a slow twin uses nothing of its twin"
            )


def asked(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
