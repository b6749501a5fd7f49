"""Tables fit the terminal: no column and no digit is lost at 80 columns."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tidings.cli import status, top
from tidings.cli.shared import output
from tidings.cli.shared.top_rates import RATES

WIDTH = 80


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_console", lambda: Console(width=WIDTH, highlight=False, color_system=None))


def words(text: str) -> set[str]:
    return set(re.sub("[┏┳┓┃┡╇┩│└┴┘━─]", " ", text).split())


def check(text: str, expected: list[str]) -> None:
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert {word for heading in expected for word in heading.split()} <= words(text)


def test_top(capsys: pytest.CaptureFixture[str]) -> None:
    traffic = dict.fromkeys(RATES, 1234567.0) | {"waiting_bytes": 7_654_321, "dropped": 98_765}
    server: dict[str, Any] = {
        "server": "b0",
        "state": "up",
        "mode": "guaranteed",
        "clients": 12,
        "subscriptions": 34,
    }
    peer = {"server": "b0", "peer": "client-e3bd66cc5770", "role": "client", "address": "127.0.0.1:50590"}
    top.Screen(5, as_json=False).show(top.TopRows([server | traffic], [peer | traffic]))
    headings = [*top.SERVER_COLUMNS.values(), *top.SESSION_COLUMNS.values(), *top.TRAFFIC_COLUMNS.values()]
    check(
        capsys.readouterr().out, [*headings, "1,234,567", "7,654,321", "98,765", *peer.values(), "guaranteed"]
    )


def test_status(capsys: pytest.CaptureFixture[str]) -> None:
    session = {
        "peer": "client-e3bd66cc5770",
        "role": "client",
        "address": "127.0.0.1:50590",
        **dict.fromkeys(("waiting_bytes", "dropped", "received_bytes", "received_events"), 123_456_789),
        **dict.fromkeys(("sent_bytes", "sent_events"), 987_654_321),
    }
    status.show("tidings://127.0.0.1:7400", {"broker": "b0", "sessions": [session]})
    text = capsys.readouterr().out
    check(
        text, [*(key.replace("_", " ") for key in session), "123,456,789", "987,654,321", "127.0.0.1:50590"]
    )


@given(
    st.lists(
        st.tuples(st.text("abc ", max_size=12), st.integers(0, 10**12) | st.text("xyz", max_size=90)),
        min_size=1,
    )
)
def test_any_table_fits(cells: list[tuple[str, Any]]) -> None:
    tables = output.make_tables("title", [heading for heading, _ in cells], [[cell for _, cell in cells]])
    text = "\n".join(map(output.table_text, tables))
    check(text, [output.cell_text(cell) for _, cell in cells if isinstance(cell, int)])
