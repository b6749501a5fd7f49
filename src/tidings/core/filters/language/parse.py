"""Parses SQL text into an expression tree: the part of Spark's grammar that a filter may use.

    condition  = term {OR term}            predicate = unit [suffix]
    term       = factor {AND factor}       unit      = literal | name | ( condition )
    factor     = {NOT | !} predicate       suffix    = comparison unit | [NOT] BETWEEN unit AND unit
                                                     | [NOT] IN (literals) | [NOT] LIKE string [ESCAPE string]
                                                     | IS [NOT] (NULL | TRUE | FALSE | UNKNOWN)

Anything else raises a FilterError with the offending text and its position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidings.core.errors import FilterError
from tidings.core.filters.language.expression import (
    COMPARISONS,
    And,
    Column,
    Comparison,
    Expression,
    InList,
    LikeTest,
    Not,
    NullTest,
    Operand,
    TruthTest,
    Value,
    conjunction,
    disjunction,
)
from tidings.core.filters.language.lexer import Lexeme, Token, tokenise
from tidings.core.filters.language.like import ESCAPE, Like
from tidings.core.filters.language.literals import check_list, check_name, read_number
from tidings.core.filters.language.normalise import FilterLimits
from tidings.core.filters.language.predicates import Literal
from tidings.core.filters.language.render import GRAMMAR, REFUSED, is_bare_name

_CONSTANTS: dict[str, bool | None] = {"TRUE": True, "FALSE": False, "NULL": None}
_SPELLINGS = {"==": "=", "<>": "!="}
_SUFFIXES = frozenset({"BETWEEN", "IN", "LIKE", "IS", "NOT", "!"})

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


def parse(sql: str, limits: FilterLimits) -> Expression:
    """Parse a filter. Length and depth are limited here, everything else in `normalise`."""
    if len(sql) > limits.max_length:
        raise FilterError(f"the filter has {len(sql)} characters, the limit is {limits.max_length}")
    tokens = tokenise(sql)
    if len(tokens) == 1:
        raise FilterError("the filter is empty")
    return _Parser(sql, tokens, limits.max_depth).whole()


class _Parser:
    def __init__(self, sql: str, tokens: list[Token], max_depth: int) -> None:
        self._sql = sql
        self._tokens = tokens
        self._max_depth = max_depth
        self._index = 0
        self._depth = 0

    # --- tokens ---

    @property
    def _token(self) -> Token:
        return self._tokens[self._index]

    def _next(self) -> Token:
        """Return the current token and advance past it, unless it is the end."""
        token = self._token
        if token.kind is not Lexeme.END:
            self._index += 1
        return token

    def _at(self, *texts: str) -> bool:
        return self._token.kind in (Lexeme.WORD, Lexeme.SYMBOL) and self._token.text in texts

    def _take(self, *texts: str) -> bool:
        found = self._at(*texts)
        if found:
            self._next()
        return found

    def _expect(self, text: str, where: str) -> None:
        if not self._take(text):
            raise self._error(f"expected {text} {where}, found {_named(self._token)}")

    def _error(self, message: str, token: Token | None = None) -> FilterError:
        position = (token or self._token).position
        return FilterError(message, sql=self._sql, position=position)

    # --- conditions ---

    def whole(self) -> Expression:
        start = self._token
        expression = self._condition()
        token = self._token
        if token.kind is Lexeme.END:
            return self._truth(expression, start)
        if token.text == ";":
            raise self._error("a filter is a single condition without ';'")
        if token.text == ")":
            raise self._error("')' has no matching '('")
        raise self._unsupported(token)

    def _condition(self) -> Expression:
        """Parse an OR or anything below it, such as the lone operand in parentheses of `(size) > 10`."""
        start = self._token
        first = self._term()
        if not self._at("OR"):
            return first
        terms = [self._truth(first, start)]
        while self._take("OR"):
            start = self._token
            terms.append(self._truth(self._term(), start))
        return disjunction(*terms)

    def _term(self) -> Expression:
        start = self._token
        first = self._factor()
        if not self._at("AND"):
            return first
        factors = [self._truth(first, start)]
        while self._take("AND"):
            start = self._token
            factors.append(self._truth(self._factor(), start))
        return conjunction(*factors)

    def _factor(self) -> Expression:
        count = 0
        while self._at("NOT", "!"):
            count += 1
            self._deepen(self._next())
        start = self._token
        expression = self._predicate()
        self._depth -= count
        if count:
            expression = self._truth(expression, start)
        return Not(expression) if count % 2 else expression

    def _truth(self, expression: Expression, start: Token) -> Expression:
        """Return the expression if it can be a condition."""
        if isinstance(expression, Value) and not isinstance(expression.value, bool | None):
            raise self._error(f"{_named(start)} is not a condition", start)
        return expression

    def _deepen(self, token: Token) -> None:
        self._depth += 1
        if self._depth > self._max_depth:
            raise self._error(
                f"the filter is nested {self._depth} levels deep or more, the limit is {self._max_depth}",
                token,
            )

    # --- predicates ---

    def _predicate(self) -> Expression:
        start = self._token
        left = self._unit()
        token = self._token
        operator = _SPELLINGS.get(token.text, token.text)
        if token.kind is Lexeme.SYMBOL and operator in COMPARISONS:
            self._next()
            return Comparison(self._operand(left, start), operator, self._operand_here())
        if not self._at(*_SUFFIXES):
            return left
        operand = self._operand(left, start)
        if self._take("IS"):
            return self._is(operand)
        negated = self._take("NOT", "!")
        found = self._suffix(operand)
        return Not(found) if negated else found

    def _suffix(self, operand: Operand) -> Expression:
        token = self._next()
        if token.kind is Lexeme.WORD and token.text == "BETWEEN":
            low = self._operand_here()
            self._expect("AND", "in BETWEEN")
            return And((Comparison(operand, ">=", low), Comparison(operand, "<=", self._operand_here())))
        if token.kind is Lexeme.WORD and token.text == "IN":
            return self._membership(operand)
        if token.kind is Lexeme.WORD and token.text == "LIKE":
            return self._like(operand)
        raise self._unsupported(token)

    def _is(self, operand: Operand) -> Expression:
        negated = self._take("NOT", "!")
        token = self._next()
        found: Expression
        if token.kind is not Lexeme.WORD or token.text not in ("NULL", "UNKNOWN", "TRUE", "FALSE"):
            raise self._error(f"IS takes NULL, TRUE, FALSE or UNKNOWN, not {_named(token)}", token)
        if token.text in ("NULL", "UNKNOWN"):
            found = NullTest(operand)
        else:
            found = TruthTest(operand, token.text == "TRUE")
        return Not(found) if negated else found

    def _membership(self, operand: Operand) -> Expression:
        opening = self._token
        self._expect("(", "after IN")
        values: list[Literal | None] = []
        while True:
            start = self._token
            item = self._unit()
            if not isinstance(item, Value):
                raise self._error(f"IN takes literals, not {_named(start)}", start)
            values.append(item.value)
            if not self._take(","):
                break
        self._expect(")", "after the values of IN")
        return InList(operand, self._checked(check_list, tuple(values), opening))

    def _like(self, operand: Operand) -> Expression:
        start = self._token
        if self._take("NULL"):
            return LikeTest(operand, None)
        pattern = self._string("LIKE")
        escape = self._string("ESCAPE") if self._take("ESCAPE") else ESCAPE
        return LikeTest(operand, self._checked(lambda text: Like(text, escape), pattern, start))

    def _string(self, keyword: str) -> str:
        token = self._next()
        if token.kind is not Lexeme.STRING:
            raise self._error(f"{keyword} takes a string literal, not {_named(token)}", token)
        return token.text

    # --- operands ---

    def _operand_here(self) -> Operand:
        start = self._token
        return self._operand(self._unit(), start)

    def _operand(self, expression: Expression, start: Token) -> Operand:
        if not isinstance(expression, Column | Value):
            raise self._error("a condition cannot be compared; only attributes and literals can", start)
        return expression

    def _unit(self) -> Expression:
        token = self._next()
        if token.kind is Lexeme.STRING:
            return Value(token.text)
        if token.kind is Lexeme.BINARY:
            return Value(token.binary)
        if token.kind is Lexeme.NAME:
            return self._name(token, token.text)
        if token.kind is Lexeme.WORD:
            return self._word(token)
        if token.kind is Lexeme.NUMBER or token.text in ("-", "+"):
            return self._number(token)
        if token.kind is Lexeme.SYMBOL and token.text == "(":
            return self._parenthesis(token)
        raise self._unsupported(token)

    def _parenthesis(self, opening: Token) -> Expression:
        self._deepen(opening)
        inside = self._condition()
        if self._at(","):
            raise self._error("lists of values are allowed only after IN")
        self._expect(")", f"for the '(' at position {opening.position}")
        self._depth -= 1
        return inside

    def _number(self, token: Token) -> Value:
        negative = False
        start = token
        while token.kind is Lexeme.SYMBOL and token.text in ("-", "+"):
            negative ^= token.text == "-"
            token = self._next()
        if token.kind is not Lexeme.NUMBER:
            raise self._error(f"a sign is allowed only before a number, not before {_named(token)}", start)
        return Value(self._checked(lambda text: read_number(text, token.suffix, negative), token.text, token))

    def _word(self, token: Token) -> Expression:
        if token.text in _CONSTANTS:
            return Value(_CONSTANTS[token.text])
        if token.text in GRAMMAR or token.text in REFUSED:
            raise self._unsupported(token)
        if self._at("("):
            raise self._error(f"functions are not supported: {token.source}", token)
        if not is_bare_name(token.source):
            raise self._error(f"the name {token.source} needs backticks", token)
        if self._token.kind is Lexeme.STRING:
            raise self._error(f"literals of type {token.text} are not supported", token)
        return self._name(token, token.source)

    def _name(self, token: Token, name: str) -> Column:
        if self._token.source.startswith("."):  # also of `a.5`, where .5 is a number
            raise self._error(f"{token.source} has no fields; quote a name that has dots as `a.b`", token)
        return Column(self._checked(check_name, name, token))

    # --- errors ---

    def _checked(self, check: Callable[[_Argument], _Result], argument: _Argument, token: Token) -> _Result:
        """Return the result of the check, and add the token's position to its error."""
        try:
            return check(argument)
        except FilterError as error:
            raise self._error(str(error), token) from None

    def _unsupported(self, token: Token) -> FilterError:
        if token.kind is Lexeme.END:
            return self._error("the filter is incomplete", token)
        if token.kind is Lexeme.SYMBOL and token.text in ("?", ":", "@", "$"):
            return self._error(f"parameters are not supported: {token.text!r}", token)
        if token.kind is Lexeme.SYMBOL and _SPELLINGS.get(token.text, token.text) in COMPARISONS:
            return self._error(f"{token.text!r} must have an attribute or literal on each side", token)
        if token.kind is Lexeme.SYMBOL and token.text not in (")", ",", ".", "("):
            return self._error(f"the operator {token.text!r} is not supported", token)
        if token.kind is Lexeme.WORD and token.text == "SELECT":
            return self._error("subqueries are not supported", token)
        if token.kind is Lexeme.WORD and token.text in REFUSED:
            return self._error(f"{token.text} is not supported; put it in backticks if it is a name", token)
        return self._error(f"{_named(token)} is unexpected here", token)


def _named(token: Token) -> str:
    """Return the token as error messages name it."""
    if token.kind is Lexeme.END:
        return "the end"
    if token.kind in (Lexeme.WORD, Lexeme.SYMBOL):
        return repr(token.source)
    return f"the {token.kind} {token.source}"
