"""Reuse the options of one command in another, so that they are written once."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Annotated, TypeVar, get_args

_Command = TypeVar("_Command", bound=Callable[..., None])


def with_options_of(other: Callable[..., None], *left_out: str, title: str) -> Callable[[_Command], _Command]:
    """Give a command the options of another one too, which it gets as keyword arguments.

    So a new option of that command need not be repeated. The help shows them under a title of their own.
    """

    def decorate(command: _Command) -> _Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        names = {each.name for each in own} | set(left_out)
        more = inspect.signature(other, eval_str=True).parameters.values()
        taken = [_under(title, each) for each in more if each.name not in names]
        kept = [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]

        def run(**options: object) -> None:
            command(**options)

        run.__signature__ = inspect.Signature([*kept, *taken])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*kept, *taken)}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run  # type: ignore[return-value]

    return decorate


def _under(title: str, parameter: inspect.Parameter) -> inspect.Parameter:
    """A copy of an option that help shows under a title."""
    kind, *about = get_args(parameter.annotation)
    option = copy.copy(about[0])
    option.rich_help_panel = title
    return parameter.replace(annotation=Annotated[kind, option])
