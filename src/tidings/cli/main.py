"""The `tidings` command: its verbs, and what happens to errors.

Command modules import what they run only when they run it, so that `tidings --help` is quick.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tidings.cli.audit import audit
from tidings.cli.bench import bench
from tidings.cli.broker import broker
from tidings.cli.demo import demo
from tidings.cli.examples import examples
from tidings.cli.get import get
from tidings.cli.plan import plan
from tidings.cli.pub import pub
from tidings.cli.record import record
from tidings.cli.replay import replay
from tidings.cli.reproduce import reproduce
from tidings.cli.sequencer import sequencer
from tidings.cli.shared.descriptors import open_closed_descriptors
from tidings.cli.shared.exits import ExitCode, exit_code_of, message_of, one_line, report
from tidings.cli.shared.output import discard_output
from tidings.cli.shared.running import Stopped, Terminated, end_children, raise_on_sigterm
from tidings.cli.sim import sim
from tidings.cli.status import status
from tidings.cli.sub import sub
from tidings.cli.sweep import sweep
from tidings.cli.top import top
from tidings.cli.up import up

EPILOG = (
    "Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 nothing or too little came in time, "
    "4 a broker cannot be reached or refuses, 130 interrupted. Every flag can be given as "
    "TIDINGS_<COMMAND>_<FLAG> in the environment."
)


class Verbs(TyperGroup):
    """A reader that closes the pipe early (`| head`) has had enough: that is no error to tell."""

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


app = typer.Typer(
    cls=Verbs,
    name="tidings",
    help="Publish/subscribe that loses nothing and shows every subscriber the same order.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "auto_envvar_prefix": "TIDINGS"},
)
NETWORK = (broker, sequencer, up, pub, sub, record, get, replay, status, top)
STUDY = (sim, sweep, audit, plan, reproduce, bench, demo, examples)
NEEDS = {
    **dict.fromkeys(("record", "get", "replay"), "archive"),
    **dict.fromkeys(("sim", "audit", "plan", "demo"), "sim"),
    "sweep": "spark",
    "reproduce": "lab",
}
"""The extra without which a verb does nothing. What only some of its flags need is told where they lead."""


def with_extra(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb; it says so if its extra is not installed."""
    if verb.__name__ not in NEEDS:
        return verb

    @wraps(verb)
    def checked(*arguments: Any, **options: Any) -> None:
        from tidings.extras import need

        need(verb.__name__, NEEDS[verb.__name__])
        verb(*arguments, **options)

    return checked


for verb in (*NETWORK, *STUDY):
    app.command()(with_extra(verb))


def show_version(wanted: bool) -> None:
    if wanted:
        from tidings import __version__

        sys.stdout.write(f"tidings {__version__}\n")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=show_version,
            is_eager=True,
            allow_from_autoenv=False,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Flags of `tidings` itself."""


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; returns its exit code. Only a bug of ours shows a traceback."""
    as_json = "--json" in takewhile(lambda argument: argument != "--", arguments)
    try:
        code = app(list(arguments), prog_name="tidings", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except typer.TyperException as error:
        if error.format_message():  # else the help was printed, for want of a command
            report(usage_message(error), as_json=as_json)
        return error.exit_code
    except Stopped as stopped:
        report(str(stopped), as_json=as_json)
        return ExitCode.SIGNAL_BASE + stopped.number
    except BrokenPipeError:
        discard_output()
        return ExitCode.BROKEN_PIPE
    except SystemExit as ended:
        # So rich, which prints the help, ends a process whose output nobody reads.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        discard_output()
        return ExitCode.BROKEN_PIPE
    except Exception as error:
        code = exit_code_of(error)
        if code is ExitCode.BUG:
            traceback.print_exc()
        report(message_of(error), as_json=as_json)
        return code


def usage_message(error: typer.TyperException) -> str:
    """Typer's message on one line, with where to read on."""
    context = getattr(error, "ctx", None)
    hint = f" (see '{context.command_path} --help')" if context is not None else ""
    return one_line(error.format_message()) + hint


def main() -> None:
    """The entry of the console script."""
    open_closed_descriptors()
    raise_on_sigterm()
    code = run(sys.argv[1:])
    if code in (ExitCode.SIGNAL_BASE + signal.SIGINT, ExitCode.SIGNAL_BASE + signal.SIGTERM):
        end_children()
    sys.exit(code)


if __name__ == "__main__":
    main()
