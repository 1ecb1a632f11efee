"""The modules of the package are layers without circles, for type checkers too: ``larder.__doc__`` lists them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import larder

PACKAGE = Path(larder.__file__).parent


def imports(path: Path) -> set[str]:
    """The modules of this package that one imports, wherever in it the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            found |= {node.module.split(".")[0]} if node.module else {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            assert not any(n.split(".")[0] == "larder" for n in names), (
                f"{path.name}: imports of the package are relative"
            )
    return found


def test_every_module_imports_those_before_it_only():
    layers = re.findall(r"^\d+\. .*(?:\n   .*)*", larder.__doc__, re.MULTILINE)
    order = [m for layer in layers for m in re.findall(r"``(\w+)``", layer)]
    files = {p.stem: p for p in PACKAGE.glob("*.py") if p.stem != "__init__"}
    assert sorted(order) == sorted(files)
    for n, module in enumerate(order):
        later = imports(files[module]) - set(order[:n])
        assert not later, f"{module} imports {sorted(later)}, which come after it"


def test_only_other_packages_are_imported_for_type_checkers_alone():
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                for x in node.body:
                    assert not (isinstance(x, ast.ImportFrom) and x.level), f"{path.name}: {ast.unparse(x)}"


def test_no_module_reaches_into_another_ones_private_names():
    """Attributes with an underscore belong to ``self``, its bases or the module; a Loader's parts share ``_shared``."""
    for path in PACKAGE.glob("*.py"):
        tree = ast.parse(path.read_text())
        modules = {p.stem for p in PACKAGE.glob("*.py")}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
                continue
            owner = ast.unparse(node.value)
            allowed = owner in ("self", "cls", "sys", "os", "super()") or node.attr in ("_shared", "_replace")
            assert allowed, f"{path.name}:{node.lineno}: {owner}.{node.attr}"
            assert owner not in modules
