"""What the demo shows while it runs: on a terminal of 80 columns and 24 lines, and line by line elsewhere."""

from __future__ import annotations

import pytest
from rich.console import Console

from tidings.demo.scene import NS_PER_S, Scene
from tidings.demo.story import SCENARIO
from tidings.demo.view import DemoView, render
from tidings.scenarios.file.expand import PlannedFault, expand
from tidings.scenarios.file.load import load_scenario


def scene() -> Scene:
    return Scene(expand(load_scenario(SCENARIO)))


def fault(shown: Scene, kind: str) -> PlannedFault:
    return next(planned for planned in shown.plan.faults if planned.kind == kind)


def lines_of(shown: Scene, *, width: int = 80, whole: bool = False) -> list[str]:
    console = Console(width=width, record=True, file=None, legacy_windows=False, color_system=None)
    with console.capture() as captured:
        console.print(render(shown, whole=whole))
    return captured.get().splitlines()


def test_faults_show_at_their_brokers_and_go_with_their_repair() -> None:
    shown = scene()
    shown.progress = {"ledger-rome": (40, 25)}
    shown.strike(fault(shown, "crash"), 3 * int(NS_PER_S))
    (line,) = [line for line in lines_of(shown) if "paris1 *" in line]
    assert line.count("killed") == 1
    shown.strike(fault(shown, "partition"), 11 * int(NS_PER_S))
    cut = [line for line in lines_of(shown) if "● rome" in line]
    assert all("cut off" in line for line in cut) and len(cut) == 2
    shown.repair(fault(shown, "partition"), 16 * int(NS_PER_S))
    shown.repair(fault(shown, "crash"), 17 * int(NS_PER_S))
    assert not shown.states
    assert [str(one) for one in shown.happenings] == [
        "  3.0 s  Killed paris1 and the sequencer beside it (kill -9).",
        " 11.0 s  Cut Rome off: nothing passes between it and the others.",
        " 16.0 s  Reconnected Rome; 15 deliveries are waiting.",
        " 17.0 s  Restarted paris1; 15 deliveries are waiting.",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_view_fits_a_terminal_and_says_how_far_everybody_is(width: int) -> None:
    shown = scene()
    shown.published, shown.archived = 1234, {"oslo2": 1200, "paris2": 1201}
    shown.progress = {one.name: (1234, 1100 + place) for place, one in enumerate(shown.plan.subscribers)}
    for number in range(20):
        shown.tell(f"happening {number}", number * int(NS_PER_S))
    lines = lines_of(shown, width=width)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for place, one in enumerate(shown.plan.subscribers):
        (line,) = [line for line in lines if one.name in line]
        assert line.split()[-3:] == ["1,234", f"{1100 + place:,}", str(134 - place)]
    assert "published 1,234" in text and "1,200 and 1,201" in text
    assert "happening 19" in text and "happening 2\n" not in text
    assert "…" not in text
    assert "happening 0" in "\n".join(lines_of(shown, whole=True))


def test_where_nobody_watches_each_happening_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown = scene()
    with DemoView(shown):
        shown.tell("Starting.")
        shown.tell("It begins.", 0)
        shown.on_change()
    assert capsys.readouterr().out == "         Starting.\n  0.0 s  It begins.\n"


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shown = scene()
    with DemoView(shown, quiet=True):
        shown.tell("Starting.")
    assert capsys.readouterr().out == ""
    assert [one.text for one in shown.happenings] == ["Starting."]
