"""Decoding, recoding and what counts as innovative, against a rank computed from scratch."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.overlay.epidemic import network_coding
from tidings.core.overlay.epidemic.galois_field import add, combine, invert, scale
from tidings.core.overlay.epidemic.network_coding import Decoder

seeds = st.integers(0, 2**32)
unhurried = settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])


def rank(vectors: list[bytes]) -> int:
    """By elimination from scratch, the dumb way."""
    rows, found = list(vectors), 0
    for column in range(len(vectors[0]) if vectors else 0):
        chosen = next((row for row in rows if row[column]), None)
        if chosen is None:
            continue
        rows.remove(chosen)
        chosen = scale(chosen, invert(chosen[column]))
        rows = [add(row, scale(chosen, row[column])) for row in rows]
        found += 1
    return found


def unit(index: int, size: int) -> bytes:
    return bytes(int(index == other) for other in range(size))


def bits(mask: bytes) -> list[int]:
    return [index for index in range(8 * len(mask)) if mask[index // 8] >> index % 8 & 1]


def full(blocks: list[bytes]) -> Decoder:
    decoder = Decoder(len(blocks), len(blocks[0]))
    for index, block in enumerate(blocks):
        assert decoder.add_plain(index, block)
    return decoder


def random_blocks(random: Random, size: int, width: int) -> list[bytes]:
    return [random.randbytes(width) for _ in range(size)]


def sparse(random: Random, size: int) -> bytes:
    """Few different coefficients, so that dependent vectors are frequent."""
    vector = bytes(random.choice((0, 0, 1, 2)) for _ in range(size))
    return vector if any(vector) else unit(random.randrange(size), size)


@given(st.integers(1, 9), st.integers(1, 40), seeds)
@unhurried
def test_a_decoder_knows_its_rank_and_decodes_at_full_rank(size: int, width: int, seed: int) -> None:
    random = Random(seed)
    blocks = random_blocks(random, size, width)
    decoder, vectors, plain = Decoder(size, width), list[bytes](), set[int]()
    for _ in range(200):
        if random.random() < 0.4:
            index = random.randrange(size)
            vector, innovative = unit(index, size), decoder.add_plain(index, blocks[index])
            plain.add(index)
        else:
            vector = sparse(random, size)
            innovative = decoder.add_coded(vector, combine(vector, blocks))
        assert innovative == (rank([*vectors, vector]) > rank(vectors))
        vectors.append(vector)
        assert decoder.rank == rank(vectors) == size - decoder.missing
        settled = bits(decoder.settled_mask())
        others = [unit(index, size) for index in range(size) if index not in settled]
        assert len(settled) == decoder.rank and rank(vectors + others) == size
        if decoder.complete:
            break
        assert set(bits(decoder.plain_mask())) == plain
        assert [decoder.plain(i) for i in range(size)] == [
            blocks[i] if i in plain else None for i in range(size)
        ]
        with pytest.raises(ValueError):
            decoder.blocks()
    assert decoder.complete and bits(decoder.plain_mask()) == list(range(size))
    assert decoder.blocks() == blocks == [decoder.plain(index) for index in range(size)]
    assert not decoder.add_plain(0, blocks[0]) and not decoder.add_coded(vectors[0], bytes(width))
    assert all(data == combine(vector, blocks) for vector, data in decoder.recode_many(3, random))


@given(st.sampled_from([1, 2, 5, 16, 17, 40]), st.sampled_from([1, 100, 1_472]), seeds)
@settings(unhurried, max_examples=examples(25))
def test_combinations_of_combinations_decode(size: int, width: int, seed: int) -> None:
    """A chain of brokers, each of which holds something of its own and passes on only combinations."""
    random = Random(seed)
    blocks = random_blocks(random, size, width)
    chain = [full(blocks), Decoder(size, width), Decoder(size, width), Decoder(size, width)]
    for index in random.sample(range(size), size // 2):
        chain[2].add_plain(index, blocks[index])
    for _ in range(20 * size + 20):
        for before, after in pairwise(chain):
            if before.rank:
                vector, data = before.recode(random)
                assert any(vector) and data == combine(vector, blocks)
                after.add_coded(vector, data)
        if chain[-1].complete:
            break
    assert chain[-1].blocks() == blocks


@given(st.integers(1, 16), seeds)
@unhurried
def test_what_is_recoded_is_a_combination_of_what_is_held(size: int, seed: int) -> None:
    random = Random(seed)
    blocks = random_blocks(random, size, 8)
    decoder, held = Decoder(size, 8), list[bytes]()
    for _ in range(random.randrange(1, size + 1)):
        vector = sparse(random, size)
        decoder.add_coded(vector, combine(vector, blocks))
        held.append(vector)
    for vector, data in decoder.recode_many(5, random):
        assert any(vector) and data == combine(vector, blocks)
        assert rank([*held, vector]) == rank(held) == decoder.rank
    with pytest.raises(ValueError):
        Decoder(size, 8).recode(random)


def test_recoding_is_repeatable_and_draws_everything_that_is_held() -> None:
    decoder = full(random_blocks(Random(1), 16, 20))
    assert decoder.recode_many(3, Random(5)) == decoder.recode_many(3, Random(5))
    vectors = [vector for vector, _ in decoder.recode_many(64, Random(6))]
    assert rank(vectors) == 16 and all(any(vector[i] for vector in vectors) for i in range(16))


def test_plain_blocks_cost_no_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("combine", "combine_many", "add", "invert", "invert_matrix", "TIMES"):
        monkeypatch.setattr(network_coding, name, None)
    blocks = random_blocks(Random(2), 16, 1_472)
    decoder = full(blocks)
    assert all(found is block for found, block in zip(decoder.blocks(), blocks, strict=True))
    assert decoder.plain_mask() == decoder.settled_mask() == b"\xff\xff"


def test_a_short_plain_block_has_zeros_behind_it() -> None:
    random = Random(3)
    blocks = [b"abcd", b"ef\0\0", b"ijkl"]
    source = Decoder(3, 4)
    for index, data in enumerate((b"abcd", b"ef", b"ijkl")):
        source.add_plain(index, data)
    assert source.blocks() == blocks and source.plain(1) == b"ef"
    decoder = Decoder(3, 4)
    decoder.add_plain(1, b"ef")
    while not decoder.complete:
        decoder.add_coded(*source.recode(random))
    assert decoder.blocks() == blocks


def test_a_plain_block_that_combinations_imply_is_not_innovative() -> None:
    blocks = [b"ab", b"cd", b"ef"]
    decoder = Decoder(3, 2)
    assert decoder.add_coded(b"\1\1\0", combine(b"\1\1\0", blocks))
    assert decoder.add_coded(b"\1\2\0", combine(b"\1\2\0", blocks))
    assert not decoder.add_plain(0, b"ab") and decoder.rank == 2
    assert decoder.plain(0) == b"ab" and decoder.plain(1) is None
    assert decoder.add_plain(2, b"ef") and decoder.blocks() == blocks


@pytest.mark.parametrize("vector", [b"", b"\1", b"\1\2\3", b"\0\0"])
def test_wrong_coefficients_are_refused(vector: bytes) -> None:
    decoder = Decoder(2, 4)
    with pytest.raises(ValueError):
        decoder.add_coded(vector, bytes(4))
    assert decoder.rank == 0


def test_wrong_lengths_places_and_sizes_are_refused() -> None:
    decoder = Decoder(2, 4)
    for wrong in (
        lambda: decoder.add_coded(b"\1\1", bytes(3)),
        lambda: decoder.add_coded(b"\1\1", bytes(5)),
        lambda: decoder.add_plain(0, bytes(5)),
        lambda: decoder.add_plain(2, bytes(4)),
        lambda: decoder.add_plain(-1, bytes(4)),
        lambda: Decoder(0, 4),
        lambda: Decoder(256, 4),
        lambda: Decoder(2, 0),
    ):
        with pytest.raises(ValueError):
            wrong()
    assert decoder.rank == 0


def test_the_largest_generation() -> None:
    random = Random(4)
    blocks = random_blocks(random, 255, 3)
    source, decoder = full(blocks), Decoder(255, 3)
    for index in range(250):
        decoder.add_plain(index, blocks[index])
    while not decoder.complete:
        decoder.add_coded(*source.recode(random))
    assert decoder.blocks() == blocks
