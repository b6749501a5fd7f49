"""Reads and checks the literals of a filter as Spark does: strings, numbers and binary values.

The rules for escapes and decimals follow the behaviour of Spark 4.3;
tests/core/filters/test_filter_spark.py compares the two.
"""

from __future__ import annotations

from decimal import Decimal
from math import isinf

from tidings.core.errors import FilterError
from tidings.core.filters.language.number import Number
from tidings.core.filters.language.predicates import Literal
from tidings.core.filters.language.render import LONG_MAX, LONG_MIN, MAX_DECIMAL_PLACES

MAX_DIGITS = 38
"""The precision of Spark's DECIMAL."""
LONG_DIGITS = 20
"""The precision to which Spark widens a long when it compares it with a decimal."""

_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_HEX = frozenset("0123456789abcdefABCDEF")
_UNICODE_DIGITS = {"u": 4, "U": 8}


def check_text(text: str) -> str:
    """Return the text if it can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FilterError(f"{text[:40]!r} contains an unpaired surrogate") from None
    return text


def check_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise FilterError(f"{name!r} is not an attribute name")
    return check_text(name)


def unescape(body: str) -> str:
    """Resolve the backslash escapes of a string literal, given without its quotes.

    `\\%` and `\\_` stay as they are, because LIKE reads them. An unknown escape is the character itself.
    """
    if "\\" not in body:
        return body
    parts: list[str] = []
    position = 0
    while (backslash := body.find("\\", position)) >= 0:
        parts.append(body[position:backslash])
        text, position = _escape_at(body, backslash + 1)
        parts.append(text)
    parts.append(body[position:])
    # two \u escapes may be the two surrogates of one character
    joined = "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return check_text(joined)


def _escape_at(body: str, start: int) -> tuple[str, int]:
    """Return the text of the escape whose backslash precedes `start`, and the position after it."""
    letter = body[start : start + 1]
    octal = body[start : start + 3]
    if len(octal) == 3 and octal[0] in "01" and all(digit in "01234567" for digit in octal):
        return chr(int(octal, 8)), start + 3
    count = _UNICODE_DIGITS.get(letter, 0)
    digits = body[start + 1 : start + 1 + count]
    if count and len(digits) == count and _HEX.issuperset(digits):
        code_point = int(digits, 16)
        if code_point > 0x10FFFF:
            raise FilterError(f"the escape \\{letter}{digits} is not a Unicode character")
        return chr(code_point), start + 1 + count
    return _ESCAPES.get(letter, letter), start + 1


def read_number(text: str, suffix: str, negative: bool) -> Number:
    """Read a number: an int, a Decimal, or a float if it has an exponent or the suffix D."""
    sign = "-" if negative else ""
    suffix = suffix.upper()
    has_exponent = "e" in text.lower()
    if suffix == "D" or (has_exponent and not suffix):
        return _read_double(sign + text)
    if suffix not in ("", "L", "BD"):
        raise FilterError(f"the suffix {suffix} of {text}{suffix} is not supported; use L, D or BD")
    if suffix == "L" and not text.isdigit():
        raise FilterError(f"{text}L is not a whole number")
    number = check_decimal(_read_decimal(sign + text))
    if suffix == "L" and not LONG_MIN <= number <= LONG_MAX:
        raise FilterError(f"{sign}{text}L does not fit into 64 bits")
    return number if "." in text or has_exponent else int(number)


def _read_double(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise FilterError(f"{text} is not a number") from None
    if isinf(number):
        raise FilterError(f"{text} is too large for a double")
    return number


def _read_decimal(text: str) -> Decimal:
    # Decimal accepts more than Spark: underscores, digits of other scripts, names of infinities
    if not frozenset("0123456789.eE+-").issuperset(text):
        raise FilterError(f"{text} is not a number")
    try:
        return Decimal(text)
    except ArithmeticError:
        raise FilterError(f"{text} is not a number") from None


def check_decimal(number: Decimal) -> Decimal:
    """Return the number if Spark can represent it and compares it exactly with an integer."""
    if not number.is_finite():
        raise FilterError(f"{number} is not allowed in a filter; use a finite number")
    whole, places = _digits(number)
    if whole + places > MAX_DIGITS:
        raise FilterError(f"a number has {whole + places} digits, the limit is {MAX_DIGITS}")
    if places and whole > LONG_DIGITS:
        raise FilterError(f"a decimal has {whole} digits before the point, the limit is {LONG_DIGITS}")
    if places > MAX_DECIMAL_PLACES:
        raise FilterError(
            f"a decimal has {places} places, the limit is {MAX_DECIMAL_PLACES}; "
            f"add an exponent to make it a double"
        )
    return number


def check_list(values: tuple[Literal | None, ...]) -> tuple[Literal | None, ...]:
    """Return the values of IN if Spark has one type for all of them that rounds none."""
    numbers = [Decimal(v) for v in values if isinstance(v, int | Decimal) and not isinstance(v, bool)]
    if any(isinstance(value, float) for value in values) or not numbers:
        return values
    digits = [_digits(number) for number in numbers]
    whole = max(LONG_DIGITS, *(whole for whole, _ in digits))
    places = max(places for _, places in digits)
    if places and whole + places > MAX_DIGITS:
        raise FilterError(
            f"a type for the whole list needs {whole + places} digits, the limit is {MAX_DIGITS}; "
            f"split the list with OR"
        )
    return values


def _digits(number: Decimal) -> tuple[int, int]:
    """Return the numbers of digits before and after the point."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    places = max(0, -exponent)
    return max(len(digits) + exponent, 0), places


def read_binary(digits: str) -> bytes:
    """Read the value of X'..'; an odd number of digits gets a leading 0."""
    if not _HEX.issuperset(digits):
        raise FilterError(f"X'{digits}' contains a character that is not a hexadecimal digit")
    return bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)
