"""Tells a client that nothing is subscribed to its request, so that it need not wait for an answer (bus/requests.py).

Every broker of a guaranteed or an epidemic network knows all interests; one of a best-effort network knows what its
neighbours pass on, which is enough to know that nobody behind them is interested. Any subscription counts, whether
somebody answers there or not.
"""

from __future__ import annotations

from collections.abc import Callable

from tidings.core.errors import AttributeValueError
from tidings.core.events.event import check_attributes
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port
from tidings.core.messages import NoResponders, RespondersRequest
from tidings.core.overlay.matching import Matcher, Selection


class Responders(Part):
    """`leads_anywhere` says whether this broker sends events of a selection to anybody."""

    name = "responders"
    handles = {RespondersRequest: "on_responders_request"}

    def __init__(self, port: Port, matcher: Matcher, leads_anywhere: Callable[[Selection], bool]) -> None:
        super().__init__(port)
        self._matcher = matcher
        self._leads_anywhere = leads_anywhere

    def on_responders_request(self, sender: str, message: RespondersRequest) -> None:
        try:
            check_attributes(message.attributes)
        except AttributeValueError as error:
            self.port.emit(Misbehaviour(sender, f"asked who wants an invalid event: {error}"))
            return
        if not self._leads_anywhere(self._matcher.select_content(message.topic, message.attributes)):
            self.port.send(sender, NoResponders(message.number))
