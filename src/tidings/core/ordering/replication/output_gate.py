"""What a server says: held until it is safe to say it, and, of what goes up the chain, repeated until it is taken."""

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
"""What waits for the disk or the standby; beyond, nothing new is taken, and repeated by whoever asked."""
REPEATED = 256
"""Items that are repeated at a time."""
REPEAT_TICKS = 2
"""Of silence, until items are repeated."""
SUSPECT_TICKS = 4
"""Of silence, until the other replica above is tried."""


class OutputGate:
    def __init__(self, port: Port, server: str, layout: Layout, routes: Routes) -> None:
        self._port = port
        self._layout = layout
        self._routes = routes
        self._above = layout.chain.above(server)
        self._held: deque[tuple[int, MachineOutput]] = deque()
        """With the number of the batch that must be safe before."""
        self._said = 0
        """The last item of the chain that left."""
        self._silence = 0
        """Ticks in which nothing of what went up the chain was taken."""

    @property
    def is_full(self) -> bool:
        return len(self._held) >= MAX_HELD

    def begin(self, machine: SequencerMachine) -> None:
        """It speaks from now on; whoever did before may not have said all of it."""
        self._held.clear()
        self._said = machine.sent
        for no_ops in list(machine.no_ops.values()):
            self._port.emit(no_ops)
        self._silence = REPEAT_TICKS - 1  # at once
        self.repeat_chain(machine)

    def hold(self, number: int, machine: SequencerMachine) -> None:
        """What comes of batch `number`."""
        if machine.outputs:
            self._held.extend([(number, output) for output in machine.outputs])
            machine.outputs.clear()

    def forget(self) -> None:
        self._held.clear()

    def release(self, safe: int) -> None:
        """All that comes of the batches up to `safe`."""
        held = self._held
        while held and held[0][0] <= safe:
            self._say(held.popleft()[1])

    def _say(self, output: MachineOutput) -> None:
        if isinstance(output, Output):
            self._port.emit(output)
            return
        to, message = output
        if isinstance(message, ChainItem):
            self._said = message.number
            self._send_to_server(to, message)
        elif isinstance(message, ChainTaken):
            self._send_to_server(to, message)
        elif isinstance(message, Between):  # nothing would correct a wrong guess
            for node in self._layout.replicas(to):
                self._port.send(node, message)
        else:
            self._port.send(to, message)

    def _send_to_server(self, server: str, message: Message) -> None:
        self._port.send(self._routes.active(server), message)

    def was_heard(self) -> None:
        """Something of what went up the chain was taken."""
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
            if number <= self._said:
                self._send_to_server(above, ChainItem(above, number, machine.untaken[number]))
