"""Splits a filter's text into tokens with their positions, and reads literals as Spark does.

Where one pattern fails, the next one tries the same text. So that the time stays linear in the length of the text, no
pattern backtracks: every repetition is possessive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from tidings.core.errors import FilterError
from tidings.core.filters.language.literals import check_text, read_binary, unescape


class Lexeme(StrEnum):
    WORD = "word"  # a keyword or a bare name; the parser distinguishes them
    NAME = "quoted name"
    STRING = "string"
    NUMBER = "number"
    BINARY = "binary"
    SYMBOL = "symbol"
    END = "end of the filter"


class Token(NamedTuple):
    kind: Lexeme
    text: str
    """The symbol; the word in capitals; the value of a string or name; the digits of a number."""
    position: int
    source: str = ""
    """The token as it was written."""
    suffix: str = ""
    binary: bytes = b""


_SPACE = r"\t-\r \xA0\u1680\u2000-\u200A\u2028\u202F\u205F\u3000"
"""White space as Spark defines it, which is neither Python's \\s nor Java's."""

_PATTERNS = re.compile(
    rf"""
      (?P<space>    [{_SPACE}]++ )
    | (?P<comment>  -- | /\* .*? \*/ )
    | (?P<string>   '(?: [^'\\]++ | \\. | '' )*+' | "(?: [^"\\]++ | \\. | "" )*+" )
    | (?P<raw>      [rR] (?: '[^']*+' | "[^"]*+" ) )
    | (?P<binary>   [xX] '[^']*+' )
    | (?P<name>     ` (?: [^`]++ | `` )*+ ` )
    | (?P<unclosed> ['"`] | /\* )
    | (?P<number>   (?P<digits> (?: [0-9]++ (?: \. [0-9]*+ )?+ | \. [0-9]++ ) (?: [eE] [+-]?+ [0-9]*+ )?+ )
                    (?P<suffix> (?: [lsydfLSYDF] | [bB][dD] )?+ ) (?! \w )
                  | [0-9]++ (?! \w ) )
    | (?P<word>     (?: \w | [^\x00-\x7F{_SPACE}] )++ )
    | (?P<symbol>   <=> | [<>=!]= | <> | \|\| | && | :: | => | ->>?+ | . )
    """,
    re.VERBOSE | re.DOTALL,
)


def tokenise(sql: str) -> list[Token]:
    """Return the tokens, followed by one of kind END."""
    check_text(sql)
    tokens: list[Token] = []
    for found in _PATTERNS.finditer(sql):
        if found.lastgroup != "space":
            try:
                tokens.append(_token(found))
            except FilterError as error:
                raise FilterError(str(error), sql=sql, position=found.start()) from None
    return [*_joined(tokens, sql), Token(Lexeme.END, "", len(sql))]


def _token(found: re.Match[str]) -> Token:
    source, place = found[0], found.start()
    match found.lastgroup:
        case "word":
            # keywords are ASCII, and upper() turns some other letters into ASCII ones
            return Token(Lexeme.WORD, source.upper() if source.isascii() else source, place, source)
        case "symbol":
            return Token(Lexeme.SYMBOL, source, place, source)
        case "number":
            return Token(Lexeme.NUMBER, found["digits"] or source, place, source, found["suffix"] or "")
        case "string":
            quote = source[0]
            return Token(Lexeme.STRING, unescape(source[1:-1].replace(quote * 2, quote)), place, source)
        case "raw":
            return Token(Lexeme.STRING, source[2:-1], place, source)
        case "binary":
            return Token(Lexeme.BINARY, "", place, source, binary=read_binary(source[2:-1]))
        case "name":
            return Token(Lexeme.NAME, source[1:-1].replace("``", "`"), place, source)
        case "comment":
            raise FilterError("comments are not supported")
        case _:
            opened = "comment" if source == "/*" else "text"
            raise FilterError(f"the {opened} that begins with {source} is not closed")


def _joined(tokens: list[Token], sql: str) -> Iterator[Token]:
    """Yield the tokens with consecutive string literals joined: 'a' 'b' is 'ab'."""
    for kind, group in groupby(tokens, lambda token: token.kind):
        run = list(group)
        if kind is Lexeme.STRING and len(run) > 1:
            start, end = run[0].position, run[-1].position + len(run[-1].source)
            yield Token(kind, "".join(token.text for token in run), start, sql[start:end])
        else:
            yield from run
