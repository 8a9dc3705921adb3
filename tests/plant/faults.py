"""Wrong lines, made from right ones: each operator is a slip that somebody could make in a diff and read past.

Messages, log lines, annotations and decorators are left alone: what they say is not what a test of values is for. So
are assertions: they state what every caller of ours guarantees, and without one the code does what it did.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

WAITS = frozenset(
    ("wait", "wait_event", "wait_stream", "synchronize", "record", "join", "acquire", "release", "flush", "fsync")
) | frozenset(("barrier", "agree", "check"))
# What changes the precision, the layout or the owner of a tensor and leaves its values about as they were.
CONVERSIONS = frozenset(("float", "double", "half", "contiguous", "clone", "detach"))
BOUNDS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
FLIPS = {
    ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
TWINS = {"min": "max", "max": "min", "amin": "amax", "amax": "amin", "floor": "ceil", "ceil": "floor"}
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"}
# Of a field of a dataclass: what is printed of it, and not what it is.
NOT_VALUES = frozenset(("repr", "compare", "kw_only", "help"))
Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fault:
    """Bytes ``start .. stop`` of a file become ``text``. ``line`` counts from 1."""

    path: str
    operator: str
    line: int
    start: int
    stop: int
    text: bytes

    def planted(self, source: bytes) -> bytes:
        return source[: self.start] + self.text + source[self.stop :]

    def lines(self, source: bytes) -> tuple[str, str]:
        """What changed, without the lines around it and their indentation, before and after."""
        begin = source.rfind(b"\n", 0, self.start) + 1
        end = source.find(b"\n", self.stop)
        end = len(source) if end < 0 else end
        tail = end - self.stop
        after = self.planted(source)
        shown = source[begin:end], after[begin : self.start + len(self.text) + tail]
        before, now = (" ⏎ ".join(part.strip() for part in piece.decode().splitlines()) for piece in shown)
        return before, now


def faults_in(source: bytes, path: str) -> list[Fault]:
    """Every fault that the operators find in a file, in the order of its lines."""
    found = _Finder(source, path)
    found.visit(ast.parse(source))
    return sorted(found.faults, key=lambda f: (f.start, f.operator, f.text))


class _Finder(ast.NodeVisitor):
    def __init__(self, source: bytes, path: str) -> None:
        self.faults: list[Fault] = []
        self._source, self._path = source, path
        self._begins = [0]
        for line in source.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))
        self._default = False

    def _span(self, node: ast.AST) -> Position:
        return (
            self._begins[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            self._begins[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    def _text(self, node: ast.AST) -> bytes:
        start, stop = self._span(node)
        return self._source[start:stop]

    def _add(self, operator: str, span: Position, text: bytes | str) -> None:
        text = text.encode() if isinstance(text, str) else text
        line = self._source.count(b"\n", 0, span[0]) + 1
        self.faults.append(Fault(self._path, operator, line, *span, text))

    # What is walked, and what is not.

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._visit_default(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        last = node.body[-1]
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant):  # a docstring or "...": no code
            return
        for value in (*node.args.defaults, *node.args.kw_defaults):
            if value is not None:
                self._visit_default(value)
        self._body(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._body(node.body)

    def visit_Module(self, node: ast.Module) -> None:
        self._body(node.body)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item)
        self._body(node.body)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._body(node.body)
        self._body(node.orelse)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if len(node.body) == 1 and isinstance(node.body[0], ast.Raise):
            self._add("check", self._span(node.body[0]), "pass")
        if not isinstance(node.test, ast.Compare):
            self._add("flip", self._span(node.test), b"not (" + self._text(node.test) + b")")
        self.visit(node.test)
        self._body(node.body)
        self._body(node.orelse)

    def _visit_default(self, node: ast.expr) -> None:
        self._default = True
        self.visit(node)
        self._default = False

    def _body(self, body: list[ast.stmt]) -> None:
        for first, second in pairwise(body):
            if _movable(first) and _movable(second) and not _both_set_attributes(first, second):
                (a, b), (c, d) = self._span(first), self._span(second)
                swapped = self._source[c:d] + self._source[b:c] + self._source[a:b]
                self._add("order", (a, d), swapped)
        for statement in body:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):  # a docstring
                self.visit(statement)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in NOT_VALUES:
            self.visit(node.value)

    # Operators.

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call):
            name = _called(call)
            if name in WAITS:
                self._add("wait", self._span(node), "pass")
            if _is_log(call):
                return
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value, text = node.value, None
        if isinstance(value, bool):
            text = str(not value)
        elif isinstance(value, int):
            text = str(value + 1)
        elif isinstance(value, float):
            text = repr(value * 1.5 if value else 1.0)
        if text is not None:
            self._add("default" if self._default else "constant", self._span(node), text)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            kind = type(node.ops[0])
            left, right = self._text(node.left), self._text(node.comparators[0])
            for operator, table in (("bound", BOUNDS), ("flip", FLIPS)):
                if kind in table:
                    self._add(operator, self._span(node), left + f" {table[kind]} ".encode() + right)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        sign = ARITHMETIC.get(type(node.op))
        if sign is not None and not any(isinstance(n, ast.Constant | ast.JoinedStr) for n in (node.left, node.right)):
            between = self._span(node.left)[1], self._span(node.right)[0]
            gap = self._source[slice(*between)]
            if gap.strip() in (b"+", b"-", b"*", b"/", b"//"):  # no brackets and no comment in it
                self._add("arithmetic", between, gap.replace(gap.strip(), sign.encode()))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        words = (b"and", b"or") if isinstance(node.op, ast.And) else (b"or", b"and")
        between = self._span(node.values[0])[1], self._span(node.values[1])[0]
        gap = self._source[slice(*between)]
        if gap.strip() == words[0] and len(node.values) == 2:
            self._add("flip", between, gap.replace(*words))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name, end = _called(node), self._span(node.func)[1]
        if name in TWINS:
            self._add("twin", (end - len(name), end), TWINS[name])
        if isinstance(node.func, ast.Attribute):
            # From the dot on: what stands before it may be in brackets, which belong to no node.
            call = self._source.rindex(b".", 0, end), self._span(node)[1]
            if name in CONVERSIONS and not node.args and not node.keywords:
                self._add("conversion", call, "")
            if name.startswith("clamp"):
                self._add("clamp", call, "")
        self.generic_visit(node)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _movable(node: ast.stmt) -> bool:
    """Statements whose order somebody chose: calls, and assignments to what others see."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and not _is_log(node.value)
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    return isinstance(node, ast.AugAssign)


def _both_set_attributes(first: ast.stmt, second: ast.stmt) -> bool:
    """``self.a = ...`` and ``self.b = ...``: nobody sees the one without the other."""
    return all(
        isinstance(node, ast.Assign) and all(isinstance(t, ast.Attribute) for t in node.targets)
        for node in (first, second)
    )


def _is_log(call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in ("log", "logging", "warnings")


def operators_of(faults: list[Fault]) -> Iterator[str]:
    """Each operator once, in a fixed order."""
    yield from sorted({fault.operator for fault in faults})
