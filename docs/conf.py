"""The documentation site: `make docs` builds it, with every warning an error."""

import os
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # class_pages, command_pages and gallery_order, beside this file

import class_pages
import command_pages
from sphinx import addnodes
from sphinx.util.nodes import make_refnode

import fragility

DOCS = Path(__file__).parent
os.environ.setdefault("MPLBACKEND", "agg")

project = "fragility"
author = "The fragility authors"
copyright = "the fragility authors, Apache-2.0"
release = fragility.__version__
version = release

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
exclude_patterns = ["_build", "auto_examples/**/*.ipynb", "auto_examples/**/*.py"]
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions, which Sphinx cannot store

# Markdown pages are read on the code host too, so links between them are plain relative links.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
default_role = "literal"  # single backquotes in docstrings are code
highlight_language = "none"  # a block that names no language holds commands or formulas

templates_path = ["templates"]
autosummary_generate = True
autosummary_context = {"own_members": class_pages.own_members}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
autodoc_typehints = "none"  # numpydoc sections say the types in words
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"^credit\.py$",
    "within_subsection_order": "gallery_order.InReadingOrder",
    "copyfile_regex": r"never^",
    "download_all_examples": False,
    "capture_repr": ("_repr_html_",),
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 1e9,  # a build's own times are no measurement
    "abort_on_example_error": True,
    "reference_url": {"fragility": None},
    "doc_module": ("fragility",),
    "backreferences_dir": "api/backreferences",
}

html_theme = "pydata_sphinx_theme"
html_title = "fragility"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
html_sidebars = {"index": [], "performance": [], "format": []}

# Pages that lie with what they describe. Sphinx reads below this folder only, so it is given copies.
COPIES = {
    "paper/pages": "more/study",
    "benchmarks/README.md": "more/benchmarks.md",
    "CONTRIBUTING.md": "more/contributing.md",
}
shutil.rmtree(DOCS / "more", ignore_errors=True)
for original, copy in COPIES.items():
    (DOCS / copy).parent.mkdir(exist_ok=True)
    duplicate = shutil.copytree if (DOCS.parent / original).is_dir() else shutil.copy2
    duplicate(DOCS.parent / original, DOCS / copy)


def link_within_the_site(app, docname, source):
    """Turn links that hold on the code host into links between the pages of the site."""
    page = f"{docname}.md"
    here = f"docs/{page}"
    for original, copy in COPIES.items():
        if page.startswith(copy):
            here = original + page.removeprefix(copy)

    def relink(link):
        target = os.path.normpath(os.path.join(os.path.dirname(here), link[1]))
        if target.startswith("examples/"):
            target = f"docs/auto_{target.removesuffix('.py')}.rst"  # as the gallery shows it
        for original, copy in COPIES.items():
            if target.startswith(original):
                target = f"docs/{copy}{target.removeprefix(original)}"
        return f"]({os.path.relpath(target, os.path.dirname(f'docs/{page}'))}"

    source[0] = re.sub(r"\]\((?!\w+:)([^)#\s]+)", relink, source[0])


def describe_commands(app, docname, source):
    """Put the commands' own help in the place of its marker."""
    if command_pages.MARKER in source[0]:
        source[0] = source[0].replace(command_pages.MARKER, command_pages.describe_commands())


def plain_defaults(app, what, name, obj, options, signature, return_annotation):
    """Write a dataclass's defaults as one would type them."""
    if signature is None:
        return None
    return signature.replace("<factory>", "{}").replace("0.3333333333333333", "1/3"), return_annotation


def find_by_short_name(app, env, node, contnode):
    """Resolve a name as users write it, such as ``verify``, to the one page that documents it, in whatever module."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target:
        return None
    documented = env.domains["py"].objects
    fitting = [name for name in documented if name.endswith(f".{target}") and name.startswith("fragility.")]
    if f"fragility.{target}" in fitting:
        fitting = [f"fragility.{target}"]
    pages = {(documented[name].docname, documented[name].node_id) for name in fitting}
    if len(pages) != 1:
        return None
    docname, anchor = pages.pop()
    return make_refnode(app.builder, node["refdoc"], docname, anchor, contnode, target)


def add_anchors(app, doctree):
    """Let every name be reached under its own module and the packages around it: source pages link to one of them."""
    for node in doctree.findall(addnodes.desc_signature):
        if not node.get("module") or not node.get("fullname"):
            continue
        documented = getattr(import_module(node["module"]), node["fullname"].partition(".")[0])
        parts = getattr(documented, "__module__", node["module"]).split(".")
        anchors = [".".join([*parts[:length], node["fullname"]]) for length in range(1, len(parts) + 1)]
        node["ids"] += [anchor for anchor in anchors if anchor not in node["ids"]]


def setup(app):
    app.connect("doctree-read", add_anchors)
    app.connect("missing-reference", find_by_short_name)
    app.connect("source-read", describe_commands)
    app.connect("source-read", link_within_the_site)
    app.connect("autodoc-process-signature", plain_defaults)
