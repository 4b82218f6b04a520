"""Public docstrings are in numpydoc's form, name every parameter there is, and show examples that run."""

import doctest
import inspect
import re
from functools import cache
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
CALLABLES = {**FUNCTIONS, **METHODS}


def documented(entries) -> list[str]:
    """Names of a section's entries; one entry may name several, and ``**changes`` is named with its stars."""
    return [name.strip() for entry in entries for name in entry.name.split(",")]


def declared(function) -> list[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(function).parameters.values()
    return [stars.get(p.kind, "") + p.name for p in parameters if p.name != "self"]


@cache
def read_doc(name: str) -> FunctionDoc:
    return FunctionDoc({**PUBLIC, **METHODS}[name])


def test_every_parameter_is_documented():
    named = {name: documented(read_doc(name)["Parameters"]) for name in CALLABLES}
    wanted = {name: declared(function) for name, function in CALLABLES.items()}
    assert not {name: (named[name], wanted[name]) for name in CALLABLES if named[name] != wanted[name]}


def test_every_field_is_documented():
    for name, value in CLASSES.items():
        doc = ClassDoc(value, config={"show_class_members": False})
        parameters, attributes = documented(doc["Parameters"]), documented(doc["Attributes"])
        assert set(parameters) <= set(declared(value)), name
        described = parameters if parameters else attributes
        assert [entry for entry in described if entry in declared(value)] == declared(value), name


def test_what_comes_back_is_documented():
    gives = {name: inspect.signature(f).return_annotation not in ("None", None) for name, f in CALLABLES.items()}
    assert not [name for name in CALLABLES if bool(read_doc(name)["Returns"]) != gives[name]]


def test_every_entry_says_something():
    names = [*CLASSES, *ERRORS, *CALLABLES]
    assert not [name for name in names if not read_doc(name)["Summary"]], "begin with one sentence"
    empty = {
        (name, section, entry.name or entry.type)
        for name in names
        for section in ("Parameters", "Returns", "Raises", "Attributes")
        for entry in read_doc(name)[section]
        if not "".join(entry.desc).strip()
    }
    assert not empty, "describe them"


def test_every_property_says_what_it_is():
    for name, value in CLASSES.items():
        own = {key: member for key, member in vars(value).items() if not key.startswith("_")}
        properties = [key for key, member in own.items() if hasattr(member, "fget") or hasattr(member, "func")]
        bases = [vars(base) for base in value.__mro__]
        silent = [key for key in properties if not any(getattr(base.get(key), "__doc__", None) for base in bases)]
        assert not silent, f"{name}: describe {silent}"


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
