"""paho's client, extended to accept one kind of answer that it does not know.

Mosquitto (2.0) answers a PUBLISH above its `message_size_limit`, which it does not announce, with the PUBACK 'Packet
too large'. The standard does not allow that reason in a PUBACK (MQTT 5.0, 3.4.2.1), and paho closes the connection. The
answers to everything else under way are lost with it, and the same message does the same on the next connection.
"""

from __future__ import annotations

from typing import Literal

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

FIRST_FAILURE = UNSPECIFIED = 0x80
REASON_AT = 2
"""Where the reason is in a PUBACK, after the message's number; without one it means success."""


def misplaced(code: int) -> str:
    """Return the meaning of a failure code that is not allowed in a PUBACK; '' for all other codes."""
    if code < FIRST_FAILURE or _name(PacketTypes.PUBACK, code):
        return ""
    return _name(PacketTypes.DISCONNECT, code) or f"reason code {code:#04x}"


def _name(packet: int, code: int) -> str:
    try:
        return str(ReasonCode(packet, identifier=code))
    except (KeyError, ValueError):
        return ""


class LenientClient(Client):
    """Treats a failure that is not allowed in a PUBACK as a rejection of that message, like any other."""

    said = ""
    """While `on_publish` runs: the broker's actual reason, if paho was given 'Unspecified error' instead."""

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        """Replace the reason. paho has no public hook for this; should it move, the test with Mosquitto fails."""
        packet = self._in_packet["packet"]
        if cmd == "PUBACK" and len(packet) > REASON_AT and (said := misplaced(packet[REASON_AT])):
            self.said = said
            packet[REASON_AT] = UNSPECIFIED
        try:
            return super()._handle_pubackcomp(cmd)
        finally:
            self.said = ""
