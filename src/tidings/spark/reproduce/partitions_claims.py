def claims(r): return []
