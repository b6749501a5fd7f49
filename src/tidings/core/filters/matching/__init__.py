"""Which of many filters an event matches. Read `match_index`, `conjunct_index`, then the two ways to find conjuncts:
`box_index` (selective intervals) and `shelf_index` over `slot_store` (bitmaps)."""
