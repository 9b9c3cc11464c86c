"""Parsing: an option that was given no value never takes the next option for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperOption

from woodshed.errors import UsageError


class Command(TyperCommand):
    """A command of Typer's that refuses ``--model --turns 3``, which getopt reads as a model called ``--turns``.

    A value that looks like an option of the command is still taken where it is tied to its own: ``--note=--turns``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does. Raises UsageError naming the option that lacks its value."""
        self._refuse(args, interspersed=ctx.allow_interspersed_args)
        return super().parse_args(ctx, args)

    def _refuse(self, args: Sequence[str], *, interspersed: bool) -> None:
        named = {name: option for option in self.params if isinstance(option, TyperOption)
                 for name in (*option.opts, *option.secondary_opts)}
        words = iter(range(len(args)))
        for at in words:
            if args[at] == "--" or not (interspersed or args[at].startswith("-")):
                return
            option = named.get(args[at])
            if option is None or option.is_flag or option.count:
                continue
            if (following := next(words, None)) is not None and args[following] in named:
                raise UsageError(f"it needs a value, and '{args[following]}' is another option",
                                 field=args[at], remedy=f"Say {args[at]} VALUE, or leave it out.")
