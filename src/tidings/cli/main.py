"""Defines the `tidings` command: its verbs, and how errors are reported.

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

from tidings.cli.__main__ import exit_quietly_on_sigint
from tidings.cli.audit import audit
from tidings.cli.bench import bench
from tidings.cli.broker import broker
from tidings.cli.cancel import cancel
from tidings.cli.context import ACTIONS as CONTEXT_ACTIONS
from tidings.cli.context import context
from tidings.cli.dead import dead
from tidings.cli.demo import demo
from tidings.cli.examples import examples
from tidings.cli.get import get
from tidings.cli.last import last
from tidings.cli.plan import plan
from tidings.cli.pub import pub
from tidings.cli.record import record
from tidings.cli.replay import replay
from tidings.cli.reproduce import reproduce
from tidings.cli.request import request
from tidings.cli.sequencer import sequencer
from tidings.cli.serve import serve
from tidings.cli.shared.command_class import Verb, Verbs, usage_message
from tidings.cli.shared.connection_choice import with_context
from tidings.cli.shared.descriptors import buffer_output, open_closed_descriptors
from tidings.cli.shared.exits import ExitCode, exit_code_of, message_of, report
from tidings.cli.shared.output import discard_output
from tidings.cli.shared.running import Stopped, end_children, raise_on_signals
from tidings.cli.sim import sim
from tidings.cli.status import status
from tidings.cli.sub import sub
from tidings.cli.subscriptions import subscriptions
from tidings.cli.sweep import sweep
from tidings.cli.top import top
from tidings.cli.up import up

EPILOG = (
    "Exit codes: 0 success, 1 a check failed, 2 bad usage or input, 3 too few events arrived in time, "
    "4 a broker cannot be reached or refuses, 5 nobody is subscribed to a request, "
    "6 a request failed, 130 interrupted. The variable TIDINGS_<COMMAND>_<FLAG> "
    "sets a flag, such as TIDINGS_SIM_SEED."
)


app = typer.Typer(
    cls=Verbs,
    name="tidings",
    help="Publish/subscribe that loses nothing and shows every subscriber the same order.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "auto_envvar_prefix": "TIDINGS"},
)
NETWORK = (
    *(broker, sequencer, up, pub, sub, request, serve, record, get, last, replay, status, top),
    *(subscriptions, cancel, dead),
)
STUDY = (sim, sweep, audit, plan, reproduce, bench, demo, examples)
NEEDS = {
    **dict.fromkeys(("record", "get", "last", "replay"), "archive"),
    **dict.fromkeys(("sim", "audit", "plan", "demo"), "sim"),
    "sweep": "spark",
    "reproduce": "lab",
}
"""The extra that a verb cannot run without. Extras that only some flags need are checked where they are used."""


def with_extra(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb, which reports if its extra is not installed."""
    if verb.__name__ not in NEEDS:
        return verb

    @wraps(verb)
    def checked(*arguments: Any, **options: Any) -> None:
        from tidings.extras import need

        need(verb.__name__, NEEDS[verb.__name__])
        verb(*arguments, **options)

    return checked


for verb in (*NETWORK, *STUDY):
    app.command(cls=Verb)(with_extra(with_context(verb)))

contexts = typer.Typer(cls=Verbs, no_args_is_help=True)
contexts.callback(help=context.__doc__)(context)
for action in CONTEXT_ACTIONS:
    contexts.command(cls=Verb)(action)
app.add_typer(contexts, name="context")


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
    """Run one command line; return its exit code. Only a bug shows a traceback."""
    as_json = "--json" in takewhile(lambda argument: argument != "--", arguments)
    try:
        code = app(list(arguments), prog_name="tidings", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except typer.TyperException as error:
        if error.format_message():  # empty if the help was printed because no command was given
            report(usage_message(error), as_json=as_json)
        return error.exit_code
    except Stopped as stopped:
        if not stopped.by_user or stopped.to_continue:  # no message for Ctrl-C itself
            report(str(stopped), as_json=as_json)
        return ExitCode.SIGNAL_BASE + stopped.number
    except BrokenPipeError:
        discard_output()
        return ExitCode.BROKEN_PIPE
    except SystemExit as ended:
        # rich, which prints the help, exits like this if the pipe is closed.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        discard_output()
        return ExitCode.BROKEN_PIPE
    except Exception as error:
        if was_interrupted(error):
            return ExitCode.SIGNAL_BASE + signal.SIGINT
        code = exit_code_of(error)
        if code is ExitCode.BUG:
            traceback.print_exc()
        report(message_of(error), as_json=as_json)
        return code


def was_interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C is the cause: inside an import it can surface as another error."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def main() -> None:
    """Run the command line, handle signals throughout, and exit with its code."""
    open_closed_descriptors()
    buffer_output()
    raise_on_signals()
    code = run(sys.argv[1:])
    exit_quietly_on_sigint()  # while the interpreter shuts down, which may take a moment
    if code in (ExitCode.SIGNAL_BASE + signal.SIGINT, ExitCode.SIGNAL_BASE + signal.SIGTERM):
        end_children()
    sys.exit(code)


if __name__ == "__main__":
    main()
