"""Recovery of lost events by gossip: numbering, loss detection, cache, blocks, partners, rounds."""
