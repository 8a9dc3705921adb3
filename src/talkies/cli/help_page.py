"""A command whose help names each option once, so that no name is cut in a terminal of 80 columns, and that takes each
option once: of two values of one option one would win without a word."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """Help has one column for all spellings of an option and cuts it; other spellings stand in the text beside it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        counts = Counter(id(param) for param in order if _takes_one_value(param))
        for param in order:
            if counts[id(param)] > 1:
                name = next((flag for flag in param.opts if flag.startswith("--")), param.opts[0])
                ctx.fail(f"{name} is given {counts[id(param)]} times: keep one of its values.")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown = copy.copy(self)
        shown.params = [_named_once(param) for param in self.params]
        TyperCommand.format_help(shown, ctx, formatter)


def _takes_one_value(param: Any) -> bool:
    return param.param_type_name == "option" and not (param.multiple or param.is_flag or param.count)


def _named_once(param: Any) -> Any:
    if param.param_type_name != "option":
        return param
    param = copy.copy(param)
    long = [flag for flag in param.opts if flag.startswith("--")]
    param.opts = [*long[:1], *(flag for flag in param.opts if not flag.startswith("--"))]
    if isinstance(param.show_default, str):  # what absence means, shown as any other default is
        param.default, param.show_default = [param.show_default] if param.multiple else param.show_default, True
    return param
