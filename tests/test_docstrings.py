"""Public docstrings are in numpydoc's form, name every parameter there is, and show examples that run."""

import doctest
import inspect
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest
from numpydoc.docscrape import ClassDoc, FunctionDoc

REFERENCE = (Path(__file__).parents[1] / "docs" / "api" / "index.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^   ([\w.]+)$", REFERENCE, re.MULTILINE)  # the door's names, and those of modules with a dot
# Of the modules for clusters the guide says more than their docstrings.
PUBLIC = {name: resolve_name(f"fragility.{name}") for name in LISTED if not name.startswith("auditing.")}
ERRORS = sorted(name for name, value in PUBLIC.items() if inspect.isclass(value) and issubclass(value, Exception))
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value) and name not in ERRORS}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if not inspect.isclass(value)}
# Methods that scikit-learn fills in say what scikit-learn says.
METHODS = {
    f"{name}.{member}": getattr(value, member)
    for name, value in CLASSES.items()
    for member, own in vars(value).items()
    if not member.startswith("_") and (inspect.isfunction(own) or isinstance(own, (classmethod, staticmethod)))
}
CALLABLES = [*FUNCTIONS, *METHODS]


def documented(entries) -> list[str]:
    """Names of a section's entries; one entry may name several, and ``**changes`` is named with its stars."""
    return [name.strip() for entry in entries for name in entry.name.split(",")]


def declared(function) -> list[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(function).parameters.values()
    return [stars.get(p.kind, "") + p.name for p in parameters if p.name != "self"]


@pytest.mark.parametrize("name", CALLABLES)
def test_every_parameter_is_documented(name):
    function = {**FUNCTIONS, **METHODS}[name]
    assert documented(FunctionDoc(function)["Parameters"]) == declared(function)


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_is_documented(name):
    doc = ClassDoc(CLASSES[name], config={"show_class_members": False})
    parameters, attributes = documented(doc["Parameters"]), documented(doc["Attributes"])
    assert set(parameters) <= set(declared(CLASSES[name]))
    told = parameters if parameters else attributes
    assert [entry for entry in told if entry in declared(CLASSES[name])] == declared(CLASSES[name])


@pytest.mark.parametrize("name", CALLABLES)
def test_what_comes_back_is_documented(name):
    function = {**FUNCTIONS, **METHODS}[name]
    gives = inspect.signature(function).return_annotation not in ("None", None)
    assert bool(FunctionDoc(function)["Returns"]) == gives


@pytest.mark.parametrize("name", [*CLASSES, *ERRORS, *CALLABLES])
def test_every_entry_says_something(name):
    doc = FunctionDoc({**PUBLIC, **METHODS}[name])
    assert doc["Summary"], "begin with one sentence"
    for section in ("Parameters", "Returns", "Raises", "Attributes"):
        empty = [entry.name or entry.type for entry in doc[section] if not "".join(entry.desc).strip()]
        assert not empty, f"{section}: describe {empty}"


@pytest.mark.parametrize("name", CLASSES)
def test_every_property_says_what_it_is(name):
    own = {key: value for key, value in vars(CLASSES[name]).items() if not key.startswith("_")}
    properties = {key: value for key, value in own.items() if hasattr(value, "fget") or hasattr(value, "func")}
    inherited = [vars(base) for base in CLASSES[name].__mro__]
    assert not [key for key in properties if not any(getattr(own.get(key), "__doc__", None) for own in inherited)]


EXAMPLES = [
    test
    for name, value in {**PUBLIC, **METHODS}.items()
    for test in doctest.DocTestFinder(recurse=False).find(value, name, globs={})
    if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda test: test.name)
def test_examples_of_docstrings_run(example):
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=told.append)
    assert not told, "".join(told)
