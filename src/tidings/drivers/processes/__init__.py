"""Brokers and sequencers as processes of this machine: started, told things, killed, and never left behind."""
