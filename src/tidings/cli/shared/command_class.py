"""Adapts Typer: help without Python's types, errors that say what was given, what is expected, and where."""

from __future__ import annotations

import os
import signal
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tidings.cli.shared.exits import ExitCode, one_line
from tidings.cli.shared.options import check_url
from tidings.cli.shared.output import discard_output
from tidings.cli.shared.running import Stopped, Terminated

METAVARS = {"int": "N", "float": "NUMBER", "Path": "FILE"}
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
INT64_WORDS: dict[float | None, str] = {-(2**63): "-2^63", 2**63 - 1: "2^63 - 1"}


class Verb(TyperCommand):
    """One command of `tidings`."""

    def get_params(self, ctx: Any) -> Any:
        return [_without_type(param) for param in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return `URL [TOPIC...]` as our metavars have it: Typer would add another pair of brackets."""
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        return ["[OPTIONS]", *(_argument_name(param) for param in arguments)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reject empty options: Typer would take an empty path for the current directory."""
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        params: list[Any] = self.params
        for param in params:
            value = given.get(param.name)
            if param.param_type_name == "option" and (
                value == "" or (isinstance(value, list) and "" in value)
            ):
                raise typer.BadParameter("must not be empty", ctx=ctx, param=param)
        if not ctx.resilient_parsing and not given.get("help"):  # not while the shell completes a word
            args = with_broker(self, ctx, given, args)
        return super().parse_args(ctx, args)


class Verbs(TyperGroup):
    """The command `tidings` itself. Signals and closed pipes end a command quietly."""

    def get_params(self, ctx: Any) -> Any:
        return [_without_type(param) for param in super().get_params(ctx)]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            raise typer.Exit(ExitCode.BROKEN_PIPE) from None
        except KeyboardInterrupt:
            raise Stopped(signal.SIGINT) from None
        except Terminated:
            raise Stopped(signal.SIGTERM) from None


def with_broker(verb: Verb, ctx: Any, given: dict[str, Any], args: list[str]) -> list[str]:
    """Return the command line with the URL that the user has left out; its context's flags become defaults."""
    from tidings.cli.shared import connection_choice as choice

    arguments = [str(param.name) for param in verb.params if param.param_type_name == "argument"]
    url = choice.url_argument(arguments)
    if url is None or not any(param.name == "context" for param in verb.params):
        return args
    place = arguments.index(url)
    if place and not given.get(arguments[place - 1]):
        return args  # what is required before it is missing: Typer says so
    if not choice.is_left_out(arguments[place:], given):
        if given.get("context"):
            raise typer.BadParameter("not allowed with a URL", ctx=ctx, param_hint="--context")
        return args
    context = given.get("context") or os.environ.get(f"{ctx.auto_envvar_prefix}_CONTEXT")
    if verb.name in choice.OPTIONAL and not context:
        return args
    chosen = ctx.obj = choice.choose_broker(context)
    check_url(chosen.url, chosen.source)
    ctx.default_map = dict(chosen.flags)
    return [*args, chosen.url] if place else [chosen.url, *args]


def _without_type(param: Any) -> Any:
    """Show a metavar instead of Python's type, and no range: errors show it. Typer checks values with its own copy."""
    param.min = param.max = None
    param.show_envvar = False
    if param.param_type_name == "argument":
        param.display_type_rich = lambda ctx: None
    elif param.metavar is None:
        param.metavar = "" if param.is_flag else _metavar(param.type_descriptor)
    return param


def _metavar(declared: Any) -> str:
    if declared.choices is not None:
        return "|".join(map(str, declared.choices))
    return METAVARS.get(getattr(declared.annotation, "__name__", ""), "TEXT")


def _argument_name(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    return name if param.required or name.startswith("[") else f"[{name}]"


# --- Errors


def usage_message(error: typer.TyperException) -> str:
    """Return one line: the flag or variable, what is wrong with it, and which help to read."""
    context: Any = getattr(error, "ctx", None)
    hint = f" (see '{context.command_path} --help')" if context is not None else ""
    if type(error) is not typer.BadParameter:  # an unknown flag, a missing argument
        message = one_line(error.format_message()).rstrip(".")
        return message[:1].lower() + message[1:] + hint
    problem = _value_problem(error) or error.message
    where = _where(error, context)
    return one_line(f"{where}: {problem}" if where else problem) + hint


def _where(error: Any, context: Any) -> str:
    """Return the flag or the environment variable that the value came from."""
    param = error.param
    if param is None and context is not None:
        param = next((one for one in context.command.params if error.param_hint in one.opts), None)
    if param is None:
        return str(error.param_hint or "")
    source = None if context is None else context.get_parameter_source(param.name)
    if source is not None and source.name == "ENVIRONMENT":
        automatic = f"{context.auto_envvar_prefix}_{param.name}".upper()
        return str(param.envvar) if param.envvar and param.envvar in os.environ else automatic
    if param.param_type_name == "argument":
        return _argument_name(param).strip("[].")
    flag = str(max(param.opts, key=len))
    from_context = source is not None and source.name == "DEFAULT_MAP"
    return f"{flag} of {context.obj.source}" if from_context else flag


def _value_problem(error: Any) -> str | None:
    """Describe a value that Typer could not convert; None if one of our own checks failed."""
    if error.__cause__ is None or not hasattr(error.__cause__, "errors"):
        return None
    found = error.__cause__.errors()[0]
    given, declared = found["input"], error.param.type_descriptor
    if declared.choices is not None:
        return f"expected one of {', '.join(map(str, declared.choices))}, not {given!r}"
    kind = getattr(declared.annotation, "__name__", "")
    if kind not in KINDS:
        return str(found["msg"])
    return f"expected {KINDS[kind]}{_range_text(declared.parameter_info)}, not {str(given)!r}"


def _range_text(info: Any) -> str:
    low, high = (_bound_text(bound) for bound in (info.min, info.max))
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return f" of at least {low}" if low is not None else f" of at most {high}" if high is not None else ""


def _bound_text(bound: float | None) -> str | None:
    if bound is None or bound in INT64_WORDS:
        return INT64_WORDS.get(bound)
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:,g}"
