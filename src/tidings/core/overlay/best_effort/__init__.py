"""Mode best-effort: events follow the interests along a tree, once, and nobody keeps them."""
