"""Measures the live path against NATS core, JetStream, Redis Streams and Mosquitto: rates, CPU, latencies, memory.

python benchmarks/live.py [--quick] [--repeat N] [--only NAME]... [--json] [--figure FILE]
"""

from live.command import main

if __name__ == "__main__":
    main()
