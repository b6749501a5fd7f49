"""Every message has the bytes that it had, and those bytes still mean the same."""

from __future__ import annotations

import importlib
import pkgutil
from itertools import count
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import Meta, Raw

from golden import check_golden, golden_lines
from tidings import core
from tidings.core.events.event import Publication, decode_publication, make_no_ops
from tidings.core.events.run import Run, RunMaker, stamped, stripped
from tidings.core.events.timestamp import Timestamp
from tidings.core.messages import Hello, Message, Notify, WireMessage
from tidings.core.overlay.epidemic.messages import Carried
from tidings.core.wire.codec import decode, encode, encode_notifications, encode_publications
from tidings.core.wire.frames import frame

for module in pkgutil.walk_packages(core.__path__, "tidings.core."):  # whichever of them has messages
    importlib.import_module(module.name)
DIRECT = WireMessage.__subclasses__()
CLASSES = sorted(
    [*DIRECT, *(kind for cls in DIRECT for kind in cls.__subclasses__())],
    key=lambda cls: int(cls.__struct_config__.tag or 0),
)
FILE = "wire.txt"
STAMP = Timestamp(2, 7, (0, 3), (5, 0))
NUMBERS = ((b"\x02" * 8, 3, 4), (b"\x05" * 8, 6, 7))


def event(sequence: int) -> Publication:
    attributes = {"flag": True, "n": -1, "x": 0.5, "text": "é", "raw": b"\x00", "none": None, "~in": 1}
    fields = ("source", 7, sequence, "/news/bbc", 1_000, attributes, b"payload")
    return decode_publication(Raw(msgspec.msgpack.encode(fields)))  # no application may publish such a name


def run(first: int) -> Run:
    maker = RunMaker("source", 7)
    for sequence in (first, first + 1):
        maker.add(sequence, "/news/bbc", {"n": sequence}, b"payload", 1_000)
    [made] = maker.take_all()
    assert isinstance(made, Run)
    return made


class Filler:
    """Fills the fields of a message with values that differ from each other, always the same ones."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def message(self, cls: type[WireMessage]) -> WireMessage:
        hints = get_type_hints(cls, include_extras=True)
        return cls(*(self.value(hints[name]) for name in cls.__struct_fields__))

    def value(self, hint: Any, meta: Meta | None = None) -> Any:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self.value(arguments[0], next(item for item in arguments if isinstance(item, Meta)))
        if origin is tuple and arguments[-1] is Ellipsis:
            return tuple(self.value(arm) for arm in _arms(arguments[0]) * 2)
        if origin is tuple:
            return tuple(map(self.value, arguments))
        if origin in (UnionType, Union):
            return self.value(arguments[0])
        if origin is dict:
            return {f"a{next(self._numbers)}": next(self._numbers)}
        if origin is Literal:
            return arguments[0]
        if isinstance(hint, type) and issubclass(hint, WireMessage):
            return self.message(hint)
        return self._plain(hint, next(self._numbers), meta)

    def _plain(self, hint: Any, number: int, meta: Meta | None) -> Any:
        least = (meta.min_length if meta else 0) or 0
        plain = {
            int: number,
            bool: True,
            str: f"t{number}",
            bytes: bytes([number]) * max(least, 2),
            Publication: event(number),
            Run: run(number),
            Any: Hello(1, "node", "broker"),  # what is relayed
        }
        return plain[hint]


def _arms(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)


def instances() -> dict[str, Message]:
    return {
        "Publication": event(1),
        "Run": run(1),
        **{cls.__name__: Filler().message(cls) for cls in CLASSES},
        "Carried-event": Carried("t1", NUMBERS, ("t8", "t9"), "t10", event(11)),  # by itself
        "Notify-event": Notify(("t1", "t2"), event(3)),
        "NotifyRun-by-the-tree": Notify(("t1", "t2"), run(3)),  # as ever, before one could be recovered
    }


def told(message: Message) -> str:
    """All fields by name; of an event inside, its bytes."""
    if isinstance(message, Publication | Run):
        return f"{type(message).__name__}({bytes(message.raw).hex()})"
    fields = []
    for name in message.__struct_fields__:
        value = getattr(message, name)
        fields.append(f"{name}={told(value) if isinstance(value, Publication | Run) else repr(value)}")
    return f"{type(message).__name__}({', '.join(fields)})"


def test_every_message_has_its_bytes() -> None:
    """One line for each class: name, bytes, fields. A class without a line, or a line without its class, fails."""
    check_golden(
        FILE, [f"{name} {encode(message).hex()} {told(message)}" for name, message in instances().items()]
    )


@pytest.mark.parametrize("name", instances())
def test_bytes_of_before_are_understood(name: str) -> None:
    lines = [line.split(" ", 2) for line in golden_lines(FILE) if line.startswith(f"{name} ")]
    assert lines, f"{name} has no bytes in golden/{FILE}"
    ((_, encoded, fields),) = lines
    (message,) = decode(bytes.fromhex(encoded))
    assert told(message) == fields


def test_batches_and_frames_have_their_bytes() -> None:
    raws = [event(1).raw, event(2).raw]
    bodies = {
        "publications": encode_publications(raws),
        "notifications": encode_notifications(("s", "t"), raws, "push"),
        "frame": frame(encode(Notify(("s",), event(1)))),
        "ordered event": bytes(stamped(event(1), 99, STAMP).raw),
        "ordered run": bytes(stamped(run(1), 99, STAMP).raw),
        "event without its body": bytes(stripped(stamped(event(1), 99, STAMP)).raw),
        "run without its body": bytes(stripped(stamped(run(1), 99, STAMP)).raw),
        "no-ops": bytes(make_no_ops("source", 7, 1, "/news/bbc", 99, STAMP, 5).raw),
    }
    check_golden("batches.txt", [f"{name} {body.hex()}" for name, body in bodies.items()])
