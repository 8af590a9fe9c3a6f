# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One fault at a time in a source file: the mistakes that losses of this kind are known for.

A missing detach, a lost or flipped sign, a denominator off by one, a bound on the wrong side, a mask that is inverted
or shifted, a minimum for a maximum, a condition that is always met. Texts of errors, annotations and docstrings are
left alone: they are no numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Gt: (">=", "<"),
    ast.GtE: (">", "<"),
    ast.Lt: ("<=", ">"),
    ast.LtE: ("<", ">"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
SYMBOLS: dict[type[ast.cmpop], str] = {
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
}
ARITHMETIC: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("/",)),
    ast.Div: ("/", ("*",)),
    ast.Pow: ("**", ("*",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
}
DROPPED_CALLS = ("detach", "abs", "square")  # x.f() -> x
SWAPPED_NAMES = {"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max"}
SWAPPED_KEYWORDS = {"min": "max", "max": "min", "eps_low": "eps_high", "eps_high": "eps_low"}


@dataclass(frozen=True)
class Mutant:
    """`source` with the characters start..end replaced."""

    path: str
    line: int
    before: str
    after: str
    start: int
    end: int
    text: str  # that takes their place

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}: {self.before} -> {self.after}"

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


class _Finder:
    def __init__(self, path: str, source: str) -> None:
        self._path, self._source = path, source
        starts, total = [], 0
        for line in source.splitlines(keepends=True):
            starts.append(total)
            total += len(line)
        self._starts = starts

    def _span(self, node: ast.expr) -> tuple[int, int]:
        """Character offsets of a node. The files are ASCII, so columns are characters."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _make(self, node: ast.expr, text: str) -> Mutant:
        start, end = self._span(node)
        short = lambda code: " ".join(code.split())  # noqa: E731
        return Mutant(self._path, node.lineno, short(self._source[start:end]), short(text), start, end, text)

    def _code(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end]

    def of(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from self._compare(node)
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            for symbol in ARITHMETIC[type(node.op)][1]:
                yield self._make(node, f"(({self._code(node.left)}) {symbol} ({self._code(node.right)}))")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert, ast.Not)):
            yield self._make(node, f"({self._code(node.operand)})")
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.BoolOp):
            word = "or" if isinstance(node.op, ast.And) else "and"
            yield self._make(node, "(" + f" {word} ".join(self._code(v) for v in node.values) + ")")
        elif isinstance(node, ast.IfExp):
            parts = (self._code(node.orelse), self._code(node.test), self._code(node.body))
            yield self._make(node, f"({parts[0]} if {parts[1]} else {parts[2]})")
        elif isinstance(node, ast.Call):
            yield from self._call(node)

    def _compare(self, node: ast.Compare) -> Iterator[Mutant]:
        kind, (right,) = type(node.ops[0]), node.comparators
        for symbol in COMPARISONS.get(kind, ()):
            yield self._make(node, f"{self._code(node.left)} {symbol} {self._code(right)}")

    def _constant(self, node: ast.Constant) -> Iterator[Mutant]:
        value = node.value
        if isinstance(value, bool):
            yield self._make(node, str(not value))
        elif isinstance(value, (int, float)):
            changed = value + 1 if abs(value) >= 1e-3 or value == 0 else value * 1e6
            yield self._make(node, repr(changed))

    def _call(self, node: ast.Call) -> Iterator[Mutant]:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in DROPPED_CALLS and not node.args:
            yield self._make(node, self._code(function.value))
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in SWAPPED_NAMES and (node.args or node.keywords):
            code = self._code(function)
            yield self._make(node, self._code(node).replace(code, code[: -len(name)] + SWAPPED_NAMES[name], 1))
        if name == "where" and len(node.args) == 3:
            first, second, third = map(self._code, node.args)
            yield self._make(node, f"{self._code(function)}({first}, {third}, {second})")
        swapped = [keyword for keyword in node.keywords if keyword.arg in SWAPPED_KEYWORDS]
        if swapped and name != "sorted":
            code = self._code(node)
            for keyword in swapped:
                code = code.replace(f"{keyword.arg}=", f"\0{SWAPPED_KEYWORDS[keyword.arg or '']}=", 1)
            yield self._make(node, code.replace("\0", ""))


def _numbers(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that is code which computes: no annotations, no raises, no docstrings, no imports."""
    skipped = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.keyword) and child.arg == "strict":  # of zip: a check, no number
                    continue
                guard = (
                    isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"
                )
                if isinstance(child, ast.AST) and not isinstance(child, skipped) and not guard:
                    pending.append(child)


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    finder = _Finder(path, source)
    found = {m.apply(source): m for node in _numbers(ast.parse(source)) for m in finder.of(node)}
    found.pop(source, None)
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.start, mutant.after))
