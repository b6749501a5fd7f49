"""The nodes of a simulated scenario: publishers and subscribers with their clients, sequencers, faults, counts."""
