"""Tells a client that nothing is subscribed to its request, so that it need not wait for an answer (bus/requests.py).

Every broker of a guaranteed or an epidemic network knows all interests; one of a best-effort network knows what its
neighbours pass on, which is enough to know that nobody behind them is interested. Any subscription counts, whether
somebody answers there or not. In a guaranteed network two do not: an archive, and what waits for nobody (shares.py).
"""

from __future__ import annotations

from collections.abc import Callable

from tidings.core.errors import AttributeValueError
from tidings.core.events.event import check_attributes
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port
from tidings.core.messages import NoResponders, RespondersRequest
from tidings.core.overlay.matching import Matcher, Selection

Look = Callable[[Selection, Callable[[], None]], None]


def at_once(leads_anywhere: Callable[[Selection], bool]) -> Look:
    """Return what `Responders` needs of a broker that knows whether it sends events of a selection to anybody."""

    def look(selection: Selection, nobody: Callable[[], None]) -> None:
        if not leads_anywhere(selection):
            nobody()

    return look


class Responders(Part):
    """`look` calls its second argument, now or later, if nobody can answer a request of that selection."""

    name = "responders"
    handles = {RespondersRequest: "on_responders_request"}

    def __init__(self, port: Port, matcher: Matcher, look: Look) -> None:
        super().__init__(port)
        self._matcher = matcher
        self._look = look

    def on_responders_request(self, sender: str, message: RespondersRequest) -> None:
        try:
            check_attributes(message.attributes)
        except AttributeValueError as error:
            self.port.emit(Misbehaviour(sender, f"asked who wants an invalid event: {error}"))
            return
        selection = self._matcher.select_content(message.topic, message.attributes)
        self._look(selection, lambda: self.port.send(sender, NoResponders(message.number)))
