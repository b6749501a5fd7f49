"""paho's client, made to take one kind of answer that it does not know.

Mosquitto (2.0) answers a PUBLISH above its `message_size_limit`, which it does not tell, with the PUBACK 'Packet too
large'. The standard has that reason elsewhere only (MQTT 5.0, 3.4.2.1), and paho ends the connection over it: with it
go the answers to all else that is under way, and on the next connection the same message does the same again.
"""

from __future__ import annotations

from typing import Literal

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

FIRST_FAILURE = UNSPECIFIED = 0x80
REASON_AT = 2
"""In a PUBACK, behind the number of the message; nothing there means success."""


def misplaced(code: int) -> str:
    """What a failure says that has no business in a PUBACK; '' of all other reasons."""
    if code < FIRST_FAILURE or _name(PacketTypes.PUBACK, code):
        return ""
    return _name(PacketTypes.DISCONNECT, code) or f"reason code {code:#04x}"


def _name(packet: int, code: int) -> str:
    try:
        return str(ReasonCode(packet, identifier=code))
    except (KeyError, ValueError):
        return ""


class LenientClient(Client):
    """A PUBACK with a failure that is none of its own is a refusal of that message, like any other."""

    said = ""
    """While `on_publish` runs: what the broker really said, if paho was given 'Unspecified error' in its place."""

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        """paho has no public place for this; if it ever has another, the test with Mosquitto shows."""
        packet = self._in_packet["packet"]
        if cmd == "PUBACK" and len(packet) > REASON_AT and (said := misplaced(packet[REASON_AT])):
            self.said = said
            packet[REASON_AT] = UNSPECIFIED
        try:
            return super()._handle_pubackcomp(cmd)
        finally:
            self.said = ""
