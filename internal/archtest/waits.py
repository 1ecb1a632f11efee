"""Prints the waits of Python tests that depend on the clock: file, line, function, words; tabs between.

Arguments: the root of the tree, then files. waits_test.go says why, and which of them may stay; waits_text_test.go what
is a wait in words.
"""

import ast
import itertools
import re
import sys
import textwrap
from pathlib import Path

LEAST_BOUND = 60.0  # seconds; a shorter bound ends tests that a busy machine slows
LEAST_HANG = 3600.0  # a sleep this long stands for code that hangs

# Keywords that say how long, whatever is called; and names that hold such a number.
KEYWORDS = ("timeout", "sample_timeout", "patience")
NAMED = re.compile(r"(^|_)(timeout|patience)$", re.IGNORECASE)

# Methods and functions whose positional argument, counted from 0, says how long.
POSITIONS = {
    "acquire": 1, "alarm": 0, "communicate": 1, "create_connection": 1, "eventually": 1, "get": 1, "join": 0,
    "poll": 0, "result": 0, "select": 3, "setitimer": 1, "settimeout": 0, "Timer": 0, "wait": 0, "wait_for": 1,
}  # fmt: skip
MANY = ("join", "poll")  # of other things, too: what is no number there is not the length of a wait
SLEEPS = ("sleep", "pace")  # pace (python/tests/pace.py) is a sleep under another name
CLOCKS = ("monotonic", "perf_counter", "time")

# Settings and flags of larder that say how long, in a configuration, an environment or a command, as Go writes it.
SETTINGS = r"(?:lease|timeout|retry_for|idle[-_]exit|--for|--interval)"
LENGTH = r"(?:[0-9.]+(?:h|ms|m|us|µs|ns|s))+(?![\w.])"
SETTING = re.compile(rf"{SETTINGS}[\"']?(?:\s*[:=]\s*|\s+)[\"']?({LENGTH})", re.IGNORECASE)
NAME = re.compile(rf"{SETTINGS}$", re.IGNORECASE)
SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
CLOCK = "--clock"  # what a daemon is told that follows the clock of a test: no time passes there by itself
SHELL = re.compile(r"(?<![\w.'/-])sleep\s+(?:([0-9.]+)([smhd]?)(?![\w.])|[\"']?\$)")  # a command in a script


class Module:
    """One file: its tree, and the numbers that its names may hold."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path, self.tree = path, tree
        self.values: dict[str, list[ast.expr]] = {}
        self.foreign: dict[str, tuple[str, str]] = {}  # module and name of what was imported
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self.assign(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self.assign(node.target, node.value)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    self.foreign[alias.asname or alias.name] = (node.module, alias.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for name, value in defaults(node.args):
                    self.values.setdefault(name, []).append(value)
        functions = {n.name: n.args for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) in functions:
                self.pass_on(functions[called(node)], node)

    def pass_on(self, args: ast.arguments, call: ast.Call) -> None:
        """Notes what a call gives the parameters of a function of the module."""
        places = [a.arg for a in (*args.posonlyargs, *args.args) if a.arg != "self"]
        given = itertools.takewhile(lambda a: not isinstance(a, ast.Starred), call.args)
        for name, value in [*zip(places, given), *((w.arg, w.value) for w in call.keywords)]:  # noqa: B905
            if name in places or name in [a.arg for a in args.kwonlyargs]:
                self.values.setdefault(name, []).append(value)

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.values.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Attribute):
            self.values.setdefault(f".{target.attr}", []).append(value)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for t, v in zip(target.elts, value.elts, strict=True):
                self.assign(t, v)


def defaults(args: ast.arguments) -> list[tuple[str, ast.expr]]:
    """The parameters that have a default, with it."""
    places = [*args.posonlyargs, *args.args]
    last = places[len(places) - len(args.defaults) :]
    out = [(a.arg, d) for a, d in zip(last, args.defaults, strict=True)]
    return out + [(a.arg, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None]


class Judge:
    """Looks at one module. Its helpers stand beside it."""

    modules: dict[Path, Module | None] = {}  # noqa: RUF012 (shared on purpose: each file is read once)

    def __init__(self, module: Module, line: int = 0, inside: str = "") -> None:
        self.module = module
        self.line, self.inside = line, inside  # of the string that holds the module, if one does
        self.stepped = 0  # calls around that have a daemon follow the clock of the test
        self.callees: set[ast.AST] = set()  # what is called, or compared
        self.found: list[tuple[int, str, str]] = []

    @classmethod
    def read(cls, path: Path) -> Module | None:
        if path not in cls.modules:
            there = path.is_file()
            cls.modules[path] = Module(path, ast.parse(path.read_text("utf-8"), str(path))) if there else None
        return cls.modules[path]

    def report(self, node: ast.AST, function: str, words: str) -> None:
        line = getattr(node, "lineno", 1)
        self.found.append((self.line or line, self.inside or function or "<module>", words))

    def number(self, node: ast.expr, module: Module, seen: tuple[str, ...] = ()) -> float | None:
        """The least number that an expression may be; None: it is unknown."""
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as plain):
                return float(plain)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                n = self.number(operand, module, seen)
                return None if n is None else -n
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self.number(left, module, seen), self.number(right, module, seen)
                if a is None or b is None:
                    return None
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.Div() if b:
                        return a / b
            case ast.IfExp(body=body, orelse=orelse):
                return self.least([body, orelse], module, seen)
            case ast.Call(func=ast.Name(id="min"), args=args):
                return self.least(args, module, seen)
            case ast.Call(func=ast.Name(id="max"), args=args):
                known = [n for n in (self.number(a, module, seen) for a in args) if n is not None]
                return max(known, default=None)
            case ast.Name() | ast.Attribute() if (name := spelt(node)) not in seen:
                values, where = self.sources(node, module)
                return self.least(values, where, (*seen, name))
        return None

    def sources(self, node: ast.Name | ast.Attribute, module: Module) -> tuple[list[ast.expr], Module]:
        """What a name or an attribute is given, and in which module."""
        name = spelt(node)
        if name in module.foreign and name not in module.values:
            file, named = module.foreign[name]
            for folder in (module.path.parent, module.path.parent.parent):
                other = self.read(folder / (file.replace(".", "/") + ".py"))
                if other is not None:
                    return self.sources(ast.Name(named), other)
        return module.values.get(name, []), module

    def unseen(self, node: ast.expr, module: Module, seen: tuple[str, ...] = ()) -> bool:
        """Whether nothing says how long."""
        match node:
            case ast.Constant():
                return False
            case ast.IfExp(body=body, orelse=orelse):
                return self.unseen(body, module, seen) or self.unseen(orelse, module, seen)
            case ast.Name() | ast.Attribute() if spelt(node) in seen:
                return False
            case ast.Name() | ast.Attribute():
                values, where = self.sources(node, module)
                return not values or any(self.unseen(v, where, (*seen, spelt(node))) for v in values)
        return self.number(node, module) is None

    def least(self, nodes: list[ast.expr], module: Module, seen: tuple[str, ...] = ()) -> float | None:
        known = [n for n in (self.number(e, module, seen) for e in nodes) if n is not None and n > 0]
        return min(known, default=None)

    def refuse(self, node: ast.expr, function: str, what: str, may_be_other: bool = False) -> None:
        n = self.number(node, self.module)
        if n is not None and 0 < n < LEAST_BOUND:
            self.report(node, function, f"{what} of {n:g} s")
        elif not may_be_other and self.unseen(node, self.module):
            self.report(node, function, f"{what} of a length that is not seen")

    def walk(self, node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            outer = function.rpartition(".")[0] if function.endswith(".") else function
            if isinstance(node, ast.ClassDef):
                function = f"{function}{node.name}." if not function or function.endswith(".") else function
            elif not function or function.endswith("."):
                function = f"{outer}.{node.name}" if outer else node.name
        stepped = isinstance(node, ast.Call) and follows(node)
        self.stepped += stepped
        self.look(node, function.rstrip("."))
        for child in ast.iter_child_nodes(node):
            self.walk(child, function)
        self.stepped -= stepped

    def look(self, node: ast.AST, function: str) -> None:
        match node:
            case ast.Call():
                self.call(node, function)
            case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
                for name, value in defaults(args):
                    if NAMED.search(name):
                        self.refuse(value, function, f"default of {name}")
            case ast.Assign(targets=[ast.Name(id=name), *_], value=value) if NAMED.search(name):
                self.refuse(value, function, name)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value in KEYWORDS:
                        self.refuse(value, function, f"{key.value}=")
                    if isinstance(key, ast.Constant):
                        self.setting(str(key.value), value, function)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                self.words(elements, function)
            case ast.BinOp(left=ast.Call() as clock, op=ast.Add(), right=right) if called(clock) in CLOCKS:
                self.refuse(right, function, "deadline")
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                self.callees |= {*sides}
                if any(isinstance(e, ast.BinOp) and any(reads_clock(x) for x in ast.walk(e)) for e in sides):
                    for e in sides:
                        if not any(reads_clock(x) for x in ast.walk(e)):
                            self.refuse(e, function, "a time that passed, compared: bound")
            case ast.Constant(value=str() as text):
                self.script(node, text, function)
                self.settings(node, text, function)
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()) if node not in self.callees:
                if self.sleeps(node):
                    self.report(node, function, "sleep under another name")

    def call(self, node: ast.Call, function: str) -> None:
        name = called(node)
        self.callees.add(node.func)
        self.words(node.args, function)
        if name == "getattr" and len(node.args) > 1 and getattr(node.args[1], "value", None) in SLEEPS:
            self.report(node, function, "sleep under another name")
        if name in SLEEPS or self.module.foreign.get(name, ("", ""))[1] == "sleep":
            n = self.number(node.args[0], self.module) if node.args else None
            if n is None or n < LEAST_HANG or self.unseen(node.args[0], self.module):
                self.report(node, function, "sleep")
            return
        for word in node.keywords:
            if word.arg in KEYWORDS:
                self.refuse(word.value, function, f"{word.arg}=")
            if word.arg:
                self.setting(word.arg, word.value, function)
        place = POSITIONS.get(name)
        if name == "get" and node.args and not isinstance(getattr(node.args[0], "value", None), bool):
            return  # of a dictionary, with a default
        if name == "wait_for" and isinstance(node.func, ast.Name):
            return  # no method of a condition
        if place is not None and place < len(node.args):
            other = name in MANY and getattr(getattr(node.func, "value", None), "id", "") != "signal"
            self.refuse(node.args[place], function, f"{name}()", other)

    def sleeps(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether this is a function that sleeps, by its own name."""
        match node:
            case ast.Name(id=name):
                return self.module.foreign.get(name, ("", ""))[1] in SLEEPS
            case ast.Attribute(value=ast.Name(id="time" | "asyncio" | "pace"), attr=name):
                return name in SLEEPS
        return False

    def words(self, elements: list[ast.expr], function: str) -> None:
        """Judges the words of a command: a flag with what follows it, and sleep."""
        for flag, value in itertools.pairwise(elements):
            if isinstance(flag, ast.Constant) and isinstance(flag.value, str):
                self.setting(flag.value, value, function)
                if flag.value == "sleep" and isinstance(value, ast.Constant):
                    self.settings(value, f"sleep {value.value}", function)

    def setting(self, name: str, value: ast.expr, function: str) -> None:
        """Judges the value that a setting, a variable of the environment or a flag is given."""
        match value:
            case ast.Constant(value=str() as text):
                if NAME.search(name) and not SETTING.search(text):  # that is judged by itself
                    self.settings(value, f"{name}={text}", function)
            case ast.IfExp(body=body, orelse=orelse):
                self.setting(name, body, function)
                self.setting(name, orelse, function)
            case ast.Name() if NAME.search(name):
                values, where = self.sources(value, self.module)
                for v in values:
                    if where is self.module and not isinstance(v, ast.Name):  # else it may go round in a circle
                        self.setting(name, v, function)

    def settings(self, node: ast.AST, text: str, function: str) -> None:
        """Judges what a text gives settings of larder, and the sleeps of a shell's script."""
        for found in SETTING.finditer(text):
            if 0 < length(found[1]) < LEAST_BOUND and not self.stepped:
                self.report(node, function, f"{found[0]}, a setting by the real clock")
        for found in SHELL.finditer(text):
            if found[1] is None or float(found[1]) * {"m": 60, "h": 3600, "d": 86400}.get(found[2], 1) < LEAST_HANG:
                self.report(node, function, f"{found[0]}, in a script")

    def script(self, node: ast.AST, text: str, function: str) -> None:
        """Judges the source of a program that a test runs, or its piece."""
        if not any(word in text for word in ("sleep(", "pace(", "timeout=", ".wait(", ".join(")) or self.line:
            return
        try:
            tree = ast.parse(textwrap.dedent(text))
        except SyntaxError:  # a piece of a program, or words
            for found in re.finditer(r"\b(?:sleep|pace)\((.*?)\)|\b(?:sample_)?timeout=([0-9.]+)", text):
                number = found[1] or found[2] or ""
                plain = re.fullmatch(r"[0-9]+(\.[0-9]*)?", number)
                least = LEAST_HANG if found[2] is None else LEAST_BOUND
                if not plain or 0 < float(number) < least:
                    self.report(node, function, f"{found[0]}, in a string")
            return
        inner = Judge(Module(self.module.path, tree), getattr(node, "lineno", 1), function or "<module>")
        inner.walk(tree, "")
        self.found += [(line, place, words + ", in a string") for line, place, words in inner.found]


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    match node.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def spelt(node: ast.Name | ast.Attribute) -> str:
    """The name under which a module's values are noted."""
    return node.id if isinstance(node, ast.Name) else f".{node.attr}"


def follows(node: ast.Call) -> bool:
    """Whether a call has a daemon follow the clock of the test: by the flag, or by what gives it the flag."""
    flagged = any(isinstance(a, ast.Constant) and a.value == CLOCK for a in node.args)
    return flagged or any(w.arg == "clock" and not isinstance(w.value, ast.Constant) for w in node.keywords)


def length(text: str) -> float:
    """Seconds of a duration as Go writes it."""
    return sum(float(n) * SECONDS[unit] for n, unit in re.findall(r"([0-9.]+)(h|ms|m|us|µs|ns|s)", text))


def reads_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called(node) in CLOCKS and not node.args


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    for name in sys.argv[2:]:
        module = Judge.read((root / name).resolve())
        if module is None:
            sys.exit(f"{name}: no such file below {root}")
        judge = Judge(module)
        judge.walk(module.tree, "")
        for (line, function, words), _ in itertools.groupby(sorted(judge.found)):
            print(name, line, function, words, sep="\t")


main()
