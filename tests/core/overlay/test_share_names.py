"""Where a share is, when brokers say different things at different times."""

from __future__ import annotations

from tidings.core.overlay.guaranteed.former_home import Place
from tidings.core.overlay.guaranteed.share_names import ShareNames

HERE, THERE = Place("here", (0, 0)), Place("there", (0, 1))


def test_a_broker_that_did_not_have_the_share_gets_it_later() -> None:
    names = ShareNames("here")
    names.redirect("billing", "there", (1, HERE))
    assert names.elsewhere("billing", (1, THERE)) is None, "it said so"
    assert names.elsewhere("billing", (2, THERE)) == (2, THERE), "the share has moved there since"


def test_what_a_broker_says_of_itself_counts_more_than_what_others_say() -> None:
    names = ShareNames("here")
    third = Place("third", (0, 2))
    names.redirect("billing", "third", (1, THERE))
    assert names.elsewhere("billing", (1, third)) == (1, THERE)
    names.redirect("billing", "there", (1, third))
    assert names.elsewhere("billing") == (1, third), "whoever was named last is asked again"


def test_a_share_that_others_have_at_an_earlier_epoch_is_not_the_latest() -> None:
    names = ShareNames("here")
    names.redirect("billing", "there", (3, Place("third", (0, 2))))
    names.redirect("billing", "fourth", (2, THERE))
    assert names.elsewhere("billing") == (3, Place("third", (0, 2)))
