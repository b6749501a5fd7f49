"""Small data structures that several protocols share; a property test compares each with a naive version.

`RangeSet` and `RangeMap` (integers and values by ranges), `RecentIds` (duplicate detection), `Highest` (the highest
number per source), `Histogram`. They are independent of each other, so read them in any order.
"""
