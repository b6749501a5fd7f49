"""Shows the demo: a live view on a terminal, otherwise one line for each thing that happens."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Self

from tidings.demo.scene import CUT_OFF, KILLED, TITLE, UP, Happening, Scene, asks_for

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

REFRESH_S = 0.2
LAST_HAPPENINGS = 5
"""Few enough for the view to fit a terminal of 24 lines."""
STYLES = {UP: "green", KILLED: "bold red", CUT_OFF: "bold yellow"}
MANY_WAIT = 10
"""Highlights from this many waiting events on; some are always under way."""


class DemoView:
    """Shows the scene as it changes, inside `with`: live on a terminal, else line by line; not at all if quiet."""

    def __init__(self, scene: Scene, *, quiet: bool = False) -> None:
        self._scene = scene
        self._live: Live | None = None
        self._shown_at = -REFRESH_S
        self._quiet = quiet

    def __enter__(self) -> Self:
        if self._quiet:
            return self
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()
            self._scene.on_change = self._show
        else:
            self._scene.on_happening = _print
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(render(self._scene, whole=True))
            self._live.stop()

    def _show(self) -> None:
        if self._live is not None and monotonic() - self._shown_at >= REFRESH_S:
            self._shown_at = monotonic()
            self._live.update(render(self._scene), refresh=True)


def _print(happening: Happening) -> None:
    sys.stdout.write(f"{happening}\n")
    sys.stdout.flush()


def render(scene: Scene, *, whole: bool = False) -> RenderableType:
    """Return the current scene; `whole`: with everything that happened, not only the latest."""
    from rich.console import Group

    parts = [_headline(scene), _sites(scene), _counts(scene), _subscribers(scene)]
    return Group(*parts, _happenings(scene.happenings if whole else scene.happenings[-LAST_HAPPENINGS:]))


def _headline(scene: Scene) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right")
    line.add_row(Text(TITLE, "bold"), Text(f"{scene.now_s:.1f} s", "bold cyan"))
    return line


def _sites(scene: Scene) -> RenderableType:
    from rich.panel import Panel
    from rich.table import Table

    row = Table.grid(expand=True)
    panels = []
    for site, brokers in scene.brokers_of_sites.items():
        row.add_column(ratio=1)
        body = Table.grid(expand=True)
        body.add_column()
        body.add_column(justify="right")
        for broker in brokers:
            body.add_row(*_broker(scene, broker))
        worst = [scene.states[broker] for broker in brokers if broker in scene.states]
        panels.append(Panel(body, title=site, border_style=STYLES[worst[0]] if worst else "dim"))
    row.add_row(*panels)
    return row


def _broker(scene: Scene, broker: str) -> tuple[Text, Text]:
    from rich.text import Text

    state = scene.states.get(broker, UP)
    name = f"{broker} *" if broker in scene.sequencers else broker
    return Text.assemble(("● ", STYLES[state]), name), Text(state, STYLES[state])


def _counts(scene: Scene) -> RenderableType:
    from rich.text import Text

    line = Text("* with a sequencer beside it", "dim")
    line.append(f"   published {scene.published:,}", "bold not dim")
    if scene.archived:
        line.append(
            "   archived " + " and ".join(f"{count:,}" for count in scene.archived.values()), "not dim"
        )
    return line


def _subscribers(scene: Scene) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, expand=True, padding=(0, 1, 0, 0))
    table.add_column("subscriber", no_wrap=True)
    table.add_column("order", no_wrap=True)
    table.add_column("asks for", no_wrap=True, overflow="ellipsis", ratio=1)
    for column in ("expected", "got", "waiting"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in scene.plan.subscribers:
        owed, arrived = scene.progress.get(one.name, (0, 0))
        waiting = owed - arrived
        style = "bold yellow" if waiting >= MANY_WAIT else ""
        numbers = Text(f"{owed:,}"), Text(f"{arrived:,}"), Text(f"{waiting:,}", style)
        table.add_row(Text(one.name), Text(one.order), Text(asks_for(one)), *numbers)
    return table


def _happenings(happenings: list[Happening]) -> Table:
    from rich.table import Table
    from rich.text import Text

    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(justify="right", style="cyan", no_wrap=True)
    lines.add_column()
    for at_s, text in happenings:
        lines.add_row("" if at_s is None else f"{at_s:.1f} s", Text(text))
    return lines
