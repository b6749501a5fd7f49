"""Tables whose strings Arrow holds otherwise, as other writers leave them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

TEXTS = {
    "large": pa.large_string(),
    "view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


def held_as(table: Any, text: Any) -> Any:
    """The same content in another of Arrow's types."""

    def other(kind: Any) -> Any:
        if pa.types.is_map(kind):
            return pa.map_(text, text)
        return pa.large_list(text) if pa.types.is_list(kind) else text if kind == pa.string() else kind

    return table.cast(pa.schema([pa.field(field.name, other(field.type)) for field in table.schema]))
