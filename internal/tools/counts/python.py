"""Counts what Python files declare, for the command counts: file names on stdin, JSON on stdout."""

import ast
import io
import json
import sys
import tokenize

Function = ast.FunctionDef | ast.AsyncFunctionDef


def width(function, method):
    a = function.args
    n = len(a.posonlyargs) + len(a.args) + len(a.kwonlyargs) + bool(a.vararg) + bool(a.kwarg)
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    return n - (method and not static)


def attributes(cls):
    """The names that the body annotates or lists in __slots__, and what methods assign to their first argument."""
    names = set()
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets):
            names |= {c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
        if isinstance(node, Function) and (args := node.args.posonlyargs + node.args.args):
            me = args[0].arg
            names |= {
                x.attr
                for x in ast.walk(node)
                if isinstance(x, ast.Attribute)
                and isinstance(x.ctx, ast.Store)
                and isinstance(x.value, ast.Name)
                and x.value.id == me
            }
    return len(names)


def comments(text):
    """Comments on neighbouring lines are one."""
    out, last = [], -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            words = token.string.lstrip("#").strip()
            if token.start[0] == last + 1 and out:
                out[-1] += "\n" + words
            else:
                out.append(words)
            last = token.start[0]
    return out


def count(name, text):
    tree = ast.parse(text, name)
    module = name.removesuffix(".py")
    found = {"methods": {}, "fields": {}, "parameters": {}}

    def visit(node, scope, in_class):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                key = f"{scope}.{child.name}"
                found["methods"][key] = len({f.name for f in child.body if isinstance(f, Function)})
                found["fields"][key] = attributes(child)
                visit(child, key, True)
            elif isinstance(child, Function):
                key = f"{scope}.{child.name}"
                found["parameters"][key] = max(found["parameters"].get(key, 0), width(child, in_class))
                visit(child, key, False)
            else:
                visit(child, scope, in_class)

    visit(tree, module, False)
    nodes = list(ast.walk(tree))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented)]
    strings = [c.value for c in nodes if isinstance(c, ast.Constant) and isinstance(c.value, str)]
    notes = comments(text)
    return {**found, "texts": strings + notes, "comments": docs + notes}


def public(root, package):
    """The functions that scripts call: what the package's ``__all__`` names, and its modules without an underscore."""
    with open(f"{root}/{package}/__init__.py") as f:
        tree = ast.parse(f.read())
    names, origin, out = set(), {}, []
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names = set(ast.literal_eval(node.value))
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for alias in node.names:
                origin[alias.asname or alias.name] = f"{node.module}.{alias.name}" if node.module else alias.name
    for name in sorted(names):
        out.append(f"{package}/{origin.get(name, name)}")
    return out


def main():
    request = json.load(sys.stdin)
    root = request["root"]
    files = {}
    for name in request["files"]:
        with open(f"{root}/{name}", encoding="utf-8") as f:
            files[name] = count(name, f.read())
    packages = [p for p in request["packages"] if f"{p}/__init__.py" in files]
    json.dump({"files": files, "public": [name for p in packages for name in public(root, p)]}, sys.stdout)


main()
