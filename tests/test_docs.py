"""The documentation is run: every Python and shell block of README and docs/guide, and every option is described.

Blocks of one page run in order, in one temporary folder and one namespace, as a reader would type them. Pages that
refer to the model of the guide start with the block that makes it; `fragility demo` runs once, and the other pages get
a copy of its folder. A block of output holds what the Python block above it prints. README and the core pages run with
`make test`, the others with `make docs`.
"""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import fragility_check
import pytest

import fragility as fg
from fragility.cli import main

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs" / "guide").glob("*.md"))]
ALL_PAGES = [
    *PAGES,
    *[REPOSITORY / name for name in ("CONTRIBUTING.md", "benchmarks/README.md", "paper/README.md")],
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted((REPOSITORY / "docs" / "decisions").glob("*.md")),
    *sorted((REPOSITORY / "paper" / "pages").glob("*.md")),
]
COMMAND_LINE = REPOSITORY / "docs" / "guide" / "command-line.md"
CORE = {"README", "auditing", "command-line", "evaluate", "evidence-pack", "failure-modes"}  # these run in `make test`
CORE |= {"protocol", "reliability", "report", "stability-intervals", "verifying"}
SET_UP = REPOSITORY / "docs" / "guide" / "auditing.md"
REFERENCE = "](auditing.md#the-model-of-this-guide)"
BLOCK = re.compile(r"^```(\w*|\{\w+\})\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUNNABLE = {"python", "bash"}
NEEDS = {"training": "torch", "parity": "skl2onnx", "models": "mlflow"}
NEEDS |= {"mlflow": "mlflow", "decision-time": "fastapi", "recipes": "torch"}
ENTRY_POINTS = {"fragility.commands"}  # a group of entry points, no module


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in BLOCK.finditer(text)]


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def run_python(block: Block, namespace: dict, page: Path) -> None:
    # the padding makes a traceback point at the line of the page
    exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory) -> Path:
    """The folder that `fragility demo` writes, made once."""
    folder = tmp_path_factory.mktemp("demo") / "demo-audit"
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--out", str(folder)])
    assert stop.value.code in (0, None)
    return folder


def run_command(line: str, demo: Callable[[], Path]) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words == ["fragility", "demo"]:
        shutil.copytree(demo(), "demo-audit")
    elif words[0] == "fragility":
        with pytest.raises(SystemExit) as stop:
            main(words[1:])
        expected = (1,) if line.endswith("# exit code 1") else (0, None)
        assert stop.value.code in expected, f"exit code {stop.value.code}: {line}"
    elif words[0] == "make":
        check_make_target(words[1])
    elif words[:3] == ["python", "-m", "fragility_check"]:
        assert fragility_check.main(words[3:]) == 0
    elif words[:2] != ["pip", "install"]:
        pytest.fail(f"a command the tests do not know how to run: {line}")


def check_make_target(target: str) -> None:
    assert shutil.which("make"), "make is needed to check the documented targets"
    subprocess.run(["make", "--dry-run", target], cwd=REPOSITORY, check=True, capture_output=True)


RUN_PAGES = [page for page in PAGES if any(block.language in RUNNABLE for block in blocks(page))]
MARKED_PAGES = [pytest.param(p, marks=() if p.stem in CORE else pytest.mark.docs, id=name(p)) for p in RUN_PAGES]


def test_the_core_pages_exist():
    assert {page.stem for page in RUN_PAGES} >= CORE


@pytest.mark.parametrize("page", MARKED_PAGES)
def test_every_block_runs(page, tmp_path, monkeypatch, capsys, request):
    import matplotlib

    library = NEEDS.get(page.stem)
    if library and find_spec(library) is None:
        pytest.skip(f"{page.name} needs {library}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    namespace: dict = {"__name__": "__main__"}
    with matplotlib.rc_context({"backend": "agg"}):
        if REFERENCE in page.read_text(encoding="utf-8"):
            run_python(blocks(SET_UP)[0], namespace, SET_UP)
        for block in blocks(page):
            if block.language == "python":
                capsys.readouterr()
                run_python(block, namespace, page)
            elif block.language == "output":
                assert capsys.readouterr().out == block.code, f"{name(page)}, line {block.line}"
            elif block.language == "bash":
                for line in block.code.replace("\\\n", " ").splitlines():
                    run_command(line, lambda: request.getfixturevalue("demo_folder"))
        import matplotlib.pyplot as plt

        plt.close("all")
    if "mlflow" in sys.modules:
        sys.modules["mlflow"].set_tracking_uri(None)  # a page may have named a store in its folder


def test_the_model_of_the_guide_is_made_once():
    assert "load_credit_g()" in blocks(SET_UP)[0].code
    made = [page.name for page in PAGES[1:] if "load_credit_g()" in page.read_text(encoding="utf-8")]
    assert made == [SET_UP.name]


@cache
def read_page(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_block_names_its_language():
    known = RUNNABLE | {"output", "text", "json", "yaml", "{toctree}"}
    unnamed = [f"{name(page)}:{block.line}" for page in PAGES for block in blocks(page) if block.language not in known]
    assert not unnamed, "say python, bash, output, json, yaml or text after the fence"


def test_links_lead_somewhere():
    targets = [(page, target) for page in ALL_PAGES for target in re.findall(r"\]\(([^)#\s]+)", read_page(page))]
    broken = [(name(page), to) for page, to in targets if "://" not in to and not (page.parent / to).exists()]
    assert not broken


SOURCES = ("src", "tests", "paper", "benchmarks", "examples", "docs", "verifier")
FILES = {"/" + str(path.relative_to(REPOSITORY)) for folder in SOURCES for path in (REPOSITORY / folder).rglob("*.py")}
NOT_OURS = {"utils.py"}  # named as what not to do


def test_every_python_file_that_is_named_exists():
    named = {(name(page), file) for page in ALL_PAGES for file in re.findall(r"`([\w/.-]+\.py)`", read_page(page))}
    gone = [(page, file) for page, file in sorted(named) if not any(known.endswith("/" + file) for known in FILES)]
    assert not [(page, file) for page, file in gone if file not in NOT_OURS]


def test_the_way_of_a_row_names_files_of_the_library():
    text = (REPOSITORY / "docs" / "how-a-row-becomes-a-certificate.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    gone = [file for file in sorted(named) if not (REPOSITORY / "src" / "fragility" / file).is_file()]
    assert not gone
    assert 30 <= len(named) <= 55


def test_every_folder_that_contributors_are_sent_to_exists():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    gone = [folder for folder in re.findall(r"`([\w./-]+/)`", text) if not (REPOSITORY / folder).is_dir()]
    assert not gone


@cache
def exists(dotted: str) -> bool:
    try:
        resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


def test_every_public_name_and_module_that_is_named_exists():
    names = {(name(page), word) for page in ALL_PAGES for word in re.findall(r"\bfg\.(\w+)", read_page(page))}
    assert not [(page, word) for page, word in sorted(names) if word not in fg.__all__]
    dotted = re.compile(r"(?<![\w./-])(fragility(?:_paper)?(?:\.[a-z_]+)+(?:\.[A-Z]\w+)?)")
    modules = {(name(page), word) for page in ALL_PAGES for word in dotted.findall(read_page(page))}
    assert not [(page, word) for page, word in sorted(modules) if word not in ENTRY_POINTS and not exists(word)]


def load_command_pages():
    """Import docs/command_pages.py, which writes the site's page on the command line."""
    spec = importlib.util.spec_from_file_location("command_pages", REPOSITORY / "docs" / "command_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COMMAND_PAGES = load_command_pages()
LEAVES = dict(COMMAND_PAGES.list_commands())
DESCRIBED = COMMAND_PAGES.describe_commands()


def section(words: tuple[str, ...]) -> str:
    """The part under the heading of one command of what the site adds to command-line.md."""
    heading = re.compile(rf"^## {' '.join(words)}(?: [A-Z][^\n]*)?\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    found = heading.search(DESCRIBED)
    assert found, f"the site has no section '## {' '.join(words)}'"
    return found[1]


def test_the_site_puts_the_commands_into_the_page_on_the_command_line():
    assert COMMAND_LINE.read_text(encoding="utf-8").count(COMMAND_PAGES.MARKER) == 1


def test_every_option_is_documented():
    for words, command in LEAVES.items():
        params = [param for param in command.params if not {"--help", "--help-all"} & set(param.opts)]
        names = [option for p in params for option in (*p.opts, *p.secondary_opts) if option.startswith("-")]
        missing = [option for option in names if f"`{option}" not in section(words)]
        assert not missing, f"the section of {' '.join(words)} lacks {missing}"
        silent = [param.opts for param in params if not param.help]
        assert not silent, f"fragility {' '.join(words)}: say in its help what {silent} do"


def list_options(command) -> set[str]:
    return {option for param in command.params for option in (*param.opts, *param.secondary_opts)}


def test_every_command_shows_an_example_with_options_that_it_has():
    for words, command in LEAVES.items():
        line = f"fragility {' '.join(words)}"
        assert line in (command.help or ""), f"add an example to the docstring of {line}"
        examples = re.findall(rf"^{line} .*", section(words), re.MULTILINE)
        named = {option for example in examples for option in re.findall(r"(?<= )--?[a-z][a-z-]*", example)}
        assert named <= list_options(command), f"the help of {line} names {sorted(named - list_options(command))}"


FOREIGN = {"--cov", "--fail-on-warning"}  # options of other programs


def test_every_option_that_is_named_exists():
    files = [*(REPOSITORY / "benchmarks").glob("*.py"), *(REPOSITORY / "verifier").glob("*.py")]
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in files)
    known = set().union(*map(list_options, LEAVES.values())) | FOREIGN | {"--help", "--version"}
    known |= set(re.findall(r"\"(--[a-z-]+)\"", scripts))
    for page in ALL_PAGES:
        spans = "\n".join(re.findall(r"`[^`\n]+`", read_page(page)))
        unknown = sorted(set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", spans)) - known)
        assert not unknown, f"{name(page)} names {unknown}"


def test_python_m_is_the_same_command_line():
    done = subprocess.run([sys.executable, "-m", "fragility", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fragility ")
