def panels(r): return []
