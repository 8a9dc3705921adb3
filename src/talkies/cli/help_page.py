"""A command whose help names each option once, so that no name is cut in a terminal of 80 columns."""

from __future__ import annotations

import copy
from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """Help has one column for all spellings of an option and cuts it; other spellings stand in the text beside it."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown = copy.copy(self)
        shown.params = [_named_once(param) for param in self.params]
        TyperCommand.format_help(shown, ctx, formatter)


def _named_once(param: Any) -> Any:
    if param.param_type_name != "option":
        return param
    param = copy.copy(param)
    long = [flag for flag in param.opts if flag.startswith("--")]
    param.opts = [*long[:1], *(flag for flag in param.opts if not flag.startswith("--"))]
    if isinstance(param.show_default, str):  # what absence means, shown as any other default is
        param.default, param.show_default = [param.show_default] if param.multiple else param.show_default, True
    return param
