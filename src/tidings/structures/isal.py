"""ISA-L's matrices over GF(2^8), their products with rows of bytes and their inverses, where it is installed.

The library comes with the pyeclib wheel, and is called directly: pyeclib itself would cut, pad and put headers
on everything. Importing this module loads nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = "pyeclib"
_TABLE_BYTES = 32
"""Of the multiplication tables that the library wants for each coefficient."""


class IsaL:
    """The library, loaded; OSError or AttributeError if it is not what it should be.

    It trusts its caller with the lengths: galois_field has checked them.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._init_tables = library.ec_init_tables
        self._init_tables.restype = None
        self._init_tables.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self._invert = library.gf_invert_matrix
        self._invert.restype = ctypes.c_int
        self._invert.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
        self._encode = library.ec_encode_data
        self._encode.restype = None
        self._encode.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, *(ctypes.c_void_p,) * 3)

    def combine_many(self, matrix: Sequence[bytes], rows: Sequence[bytes]) -> list[bytes]:
        """One combination of the rows for each line of coefficients; all rows have one length, not 0."""
        inputs, outputs, width = len(rows), len(matrix), len(rows[0])
        tables = ctypes.create_string_buffer(_TABLE_BYTES * inputs * outputs)
        self._init_tables(inputs, outputs, b"".join(matrix), tables)
        buffer = ctypes.create_string_buffer(width * outputs)
        start = ctypes.addressof(buffer)
        places = range(start, start + width * outputs, width)
        self._encode(
            width,
            inputs,
            outputs,
            tables,
            (ctypes.c_char_p * inputs)(*rows),
            (ctypes.c_void_p * outputs)(*places),
        )
        return [ctypes.string_at(place, width) for place in places]

    def invert_matrix(self, matrix: Sequence[bytes]) -> list[bytes] | None:
        """The inverse of a square matrix, None if it has none."""
        size = len(matrix)
        source = ctypes.create_string_buffer(b"".join(matrix), size * size)  # it is used up
        result = ctypes.create_string_buffer(size * size)
        if self._invert(source, result, size) != 0:
            return None
        raw = result.raw
        return [raw[start : start + size] for start in range(0, size * size, size)]


def load() -> IsaL | None:
    """The library of the installed pyeclib, None if there is none that can be used."""
    for path in _candidates():
        try:
            return IsaL(path)
        except (OSError, AttributeError):
            continue
    return None


def _candidates() -> list[Path]:
    """Where wheels put the libraries that they bring: beside the package (Linux) or inside it (macOS)."""
    spec = find_spec(_PACKAGE)  # of a top-level package: that does not import it
    found = []
    for location in (spec and spec.submodule_search_locations) or ():
        package = Path(location)
        for folder in (package.with_name(f"{_PACKAGE}.libs"), package / ".dylibs"):
            found += sorted(folder.glob("libisal*"))
    return found
