"""A filter's text as tokens, with their positions and with literals read as Spark reads them.

sqlglot's tokenizer for Spark finds the tokens. Their values are taken from the text itself, because it reads
some escapes, raw strings and suffixes otherwise than Spark does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import Token as SqlglotToken
from sqlglot.tokenizer_core import TokenType

from tidings.model.errors import FilterError
from tidings.model.literals import check_text, read_binary, unescape
from tidings.model.render import GRAMMAR


class Lexeme(StrEnum):
    WORD = "word"  # a keyword or a bare name, told apart by the parser
    NAME = "quoted name"
    STRING = "string"
    NUMBER = "number"
    BINARY = "binary"
    SYMBOL = "symbol"
    END = "end of the filter"


@dataclass(frozen=True, slots=True)
class Token:
    kind: Lexeme
    text: str
    """The symbol; the word in capitals; the value of a string or name; the digits of a number."""
    position: int
    source: str = ""
    """The token as it was written."""
    suffix: str = ""
    binary: bytes = b""


_TOKENIZER = Spark()

_LEAD = "("
"""Put before the text: sqlglot reads a first word such as SHOW as a command, and the rest as its text."""


def tokenise(sql: str) -> list[Token]:
    """The tokens, with one of kind END after them."""
    check_text(sql)
    try:
        raw = _TOKENIZER.tokenize(_LEAD + sql)
    except Exception as error:
        # sqlglot wraps what goes wrong inside it, IndexErrors included, but promises no type
        raise _unreadable(error, sql) from None
    for index, token in enumerate(raw):
        if token.comments:
            raise FilterError("comments are not supported", sql=sql, position=_comment_place(raw, index, sql))
    return _Reader(sql, raw).read_all()


def _comment_place(raw: list[SqlglotToken], index: int, sql: str) -> int:
    """sqlglot hangs a comment on the token before or after it."""
    after = sql[raw[index].end + 1 - len(_LEAD) :]
    if after.lstrip()[:2] in ("--", "/*", "{#"):
        return len(sql) - len(after.lstrip())
    return raw[index - 1].end + 1 - len(_LEAD) if index else 0


def _unreadable(error: Exception, sql: str) -> FilterError:
    """sqlglot names the place as 'from line:offset' where a quote is not closed, and else not at all."""
    reason, _, place = str(error.__cause__ or error).partition(" from ")
    offset = place.rpartition(":")[2]
    if offset.isdigit():
        return FilterError(
            f"the filter cannot be read: {reason}", sql=sql, position=max(int(offset) - len(_LEAD), 0)
        )
    opened = max(0, *(sql.rfind(mark) for mark in ("'", '"', "/*", "{#")))
    return FilterError("the filter cannot be read: something is not closed", sql=sql, position=opened)


class _Reader:
    """Turns sqlglot's tokens, whose places count the lead, into ours, whose places do not."""

    def __init__(self, sql: str, raw: list[SqlglotToken]) -> None:
        self._sql = sql
        self._raw = raw
        self._tokens: list[Token] = []

    def read_all(self) -> list[Token]:
        index = 1
        while index < len(self._raw):
            try:
                index = self._read(index)
            except FilterError as error:
                raise FilterError(str(error), sql=self._sql, position=self._place(self._raw[index])) from None
        self._tokens.append(Token(Lexeme.END, "", len(self._sql)))
        return self._tokens

    @staticmethod
    def _place(token: SqlglotToken) -> int:
        return token.start - len(_LEAD)

    def _read(self, index: int) -> int:
        """Appends the token at `index`; the index after it."""
        token = self._raw[index]
        place = self._place(token)
        source = self._sql[place : token.end + 1 - len(_LEAD)]
        if token.token_type is TokenType.NUMBER:
            return self._read_number(index, "")
        if self._is_fraction(index):
            return self._read_number(index + 1, ".")
        if token.token_type in (TokenType.STRING, TokenType.RAW_STRING):
            self._read_string(index, source)
        elif token.token_type is TokenType.HEX_STRING and source[0] in "xX":
            self._tokens.append(Token(Lexeme.BINARY, "", place, source, binary=read_binary(source[2:-1])))
        elif token.token_type is TokenType.IDENTIFIER and source[0] == "`":
            self._tokens.append(Token(Lexeme.NAME, source[1:-1].replace("``", "`"), place, source))
        elif source[-1] in "'\"" and len(source) > 1:
            raise FilterError(f"the literal {source} is not supported")
        elif source[0].isalnum() or source[0] == "_" or not source.isascii():
            self._read_words(source, place)
        else:
            self._tokens.append(Token(Lexeme.SYMBOL, source, place, source))
        return index + 1

    def _read_number(self, index: int, point: str) -> int:
        """A number; sqlglot makes `10L` into the tokens 10, ::, L, all at one place."""
        token = self._raw[index]
        following = self._raw[index + 1 : index + 3]
        suffix = following[1].text if len(following) == 2 and following[0].start == token.start else ""
        text = point + token.text
        place = self._place(token) - len(point)
        self._tokens.append(Token(Lexeme.NUMBER, text, place, text + suffix, suffix))
        return index + (3 if suffix else 1)

    def _is_fraction(self, index: int) -> bool:
        """True for the point of `.5`, unless it belongs to what stands before it, as in `a.5`."""
        point = self._raw[index]
        if point.token_type is not TokenType.DOT or index + 1 == len(self._raw):
            return False
        digits, before = self._raw[index + 1], self._tokens[-1] if self._tokens else None
        if digits.token_type is not TokenType.NUMBER or digits.start != point.end + 1:
            return False
        return before is None or before.kind is Lexeme.SYMBOL or before.text in GRAMMAR

    def _read_string(self, index: int, source: str) -> None:
        """A string literal, joined to one before it: 'a' 'b' is 'ab', and 'a''b' holds a quote."""
        token, before = self._raw[index], self._raw[index - 1]
        if token.token_type is TokenType.RAW_STRING:
            quote, text = source[1], source[2:-1]
            if quote in text:
                raise FilterError("a raw string cannot hold its own quote")
        else:
            quote, text = source[0], unescape(source[1:-1])
            touches = before.token_type is TokenType.STRING and before.end + 1 == token.start
            if touches and self._tokens[-1].source[-1] == quote:
                text = quote + text
        place = self._place(token)
        if self._tokens and self._tokens[-1].kind is Lexeme.STRING:
            previous = self._tokens.pop()
            place, text = previous.position, previous.text + text
        self._tokens.append(Token(Lexeme.STRING, text, place, source))

    def _read_words(self, source: str, place: int) -> None:
        """Words; sqlglot takes some together, such as ORDER BY."""
        offset = 0
        for word in source.split():
            offset = source.index(word, offset)
            # upper() makes ASCII letters of some others, and keywords are ASCII
            text = word.upper() if word.isascii() else word
            self._tokens.append(Token(Lexeme.WORD, text, place + offset, word))
            offset += len(word)
