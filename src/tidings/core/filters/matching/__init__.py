"""Finds which of many filters an event matches.

Read `match_index`, `shelf_index` (filters one by one, without numpy) and `conjunct_index`, then the two ways to find
many conjuncts at once: `box_index` (selective intervals) and `paged_index` over `slot_store` (bitmaps).
"""
