"""Holds a server's outputs until they may leave, and resends items of the chain until they are acknowledged."""

from __future__ import annotations

from collections import deque

from tidings.core.facts import Output
from tidings.core.kernel import Port
from tidings.core.messages import Message
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.messages import Between, ChainItem, ChainTaken
from tidings.core.ordering.routes import Routes
from tidings.core.ordering.server.machine import MachineOutput, SequencerMachine

MAX_HELD = 65_536
"""Outputs that wait for the disk or the standby; beyond, new requests are ignored, and clients retry."""
REPEATED = 256
"""Items resent at a time."""
REPEAT_TICKS = 2
"""Ticks without an acknowledgement until items are resent."""
SUSPECT_TICKS = 4
"""Ticks without an acknowledgement until the other replica above is tried."""


class OutputGate:
    def __init__(self, port: Port, server: str, layout: Layout, routes: Routes) -> None:
        self._port = port
        self._layout = layout
        self._routes = routes
        self._above = layout.chain.above(server)
        self._held: deque[tuple[int, MachineOutput]] = deque()
        """With the number of the batch that must be safe first."""
        self._last_sent = 0
        """The last item of the chain that left."""
        self._silence = 0
        """Ticks since an item of the chain was acknowledged."""

    @property
    def is_full(self) -> bool:
        return len(self._held) >= MAX_HELD

    def begin(self, machine: SequencerMachine) -> None:
        """Become active: emit and resend all that the previously active replica may not have sent."""
        self._held.clear()
        self._last_sent = machine.sent
        for no_ops in list(machine.no_ops.values()):
            self._port.emit(no_ops)
        self._silence = REPEAT_TICKS - 1  # at once
        self.repeat_chain(machine)

    def hold(self, number: int, machine: SequencerMachine) -> None:
        """Hold the machine's outputs until batch `number` is safe."""
        if machine.outputs:
            self._held.extend([(number, output) for output in machine.outputs])
            machine.outputs.clear()

    def forget(self) -> None:
        self._held.clear()

    def release(self, safe: int) -> None:
        """Send the outputs of all batches up to `safe`."""
        held = self._held
        while held and held[0][0] <= safe:
            self._send(held.popleft()[1])

    def _send(self, output: MachineOutput) -> None:
        if isinstance(output, Output):
            self._port.emit(output)
            return
        to, message = output
        if isinstance(message, ChainItem):
            self._last_sent = message.number
            self._send_to_server(to, message)
        elif isinstance(message, ChainTaken):
            self._send_to_server(to, message)
        elif isinstance(message, Between):  # to all replicas: nothing would correct a wrong guess
            for node in self._layout.replicas(to):
                self._port.send(node, message)
        else:
            self._port.send(to, message)

    def _send_to_server(self, server: str, message: Message) -> None:
        self._port.send(self._routes.active(server), message)

    def was_heard(self) -> None:
        """Record that an item of the chain was acknowledged."""
        self._silence = 0

    def repeat_chain(self, machine: SequencerMachine) -> None:
        above = self._above
        if above is None or not machine.untaken:
            self._silence = 0
            return
        self._silence += 1
        if self._silence < REPEAT_TICKS:
            return
        if self._silence % SUSPECT_TICKS == 0:
            self._routes.suspect(above)
        for number in list(machine.untaken)[:REPEATED]:
            if number <= self._last_sent:
                self._send_to_server(above, ChainItem(above, number, machine.untaken[number]))
