def claims(*a): return []
