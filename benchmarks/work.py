"""Measures groups of workers against work queues of JetStream, Redis and RabbitMQ: rates, waiting, what a kill costs.

python benchmarks/work.py [--quick] [--repeat N] [--only NAME]... [--json]
"""

from work.command import main

if __name__ == "__main__":
    main()
