"""Measures what total order costs, without sockets: the size of stamps, the work per event, and how far stamps travel.

    python benchmarks/ordering.py [--only sizes,readings,cost,sites] [--quick] [--json]

- sizes: entries of a stamp over topics per client, with 10,000 clients and 1,000 topics (paper ordering, figure 7).
  Only entries for other topics count: with one topic per client there are none. The paper's mean is over topics; the
  mean over events weights topics by how often events are published on them.
- readings: the same at 10 topics per client, for each way to read 'a power law of shape 0.901 (0.349)'. The paper has
  means of 17 (46), and 0.5 % (40 %) of the topics with 80 % of the probability.
- cost: stamps per second of one server and events per second of one subscriber, as groups and the reordering grow.
- sites: five servers at five sites, each with its own popular topics: the share of stamps made within one site. The
  precedence is that of the paper (topics by identifier, 200 per site), or comes from
  `tidings.core.ordering.placement`: made for the actual clients, or for others drawn from the same popularity.

Sizes and sites are the same every time; rates are per CPU second of one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ordering_cost import cost, verdict_on_cost
from ordering_sites import sites, verdict_on_sites
from ordering_sizes import readings, sizes
from output import table_of
from rich.console import Console


class Section(NamedTuple):
    title: str
    measure: Callable[[bool], Iterator[Any]]
    verdict: Callable[[Sequence[Any]], str] | None = None


SECTIONS = {
    "sizes": Section("entries of a stamp, 1,000 topics, 10,000 clients (quick: 1,000)", sizes),
    "readings": Section("entries at 10 topics per client, by reading of the power law", readings),
    "cost": Section("CPU of one server and of one subscriber", cost, verdict_on_cost),
    "sites": Section("five sites, 10 topics per client, threshold 2", sites, verdict_on_sites),
}


def sections(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown section {', '.join(unknown)!r}; known sections: {', '.join(SECTIONS)}"
        )
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", type=sections, default=list(SECTIONS), help="run only these sections, such as sizes,cost"
    )
    parser.add_argument("--quick", action="store_true", help="fewer clients, rounds and cases")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    console = Console(width=180)
    for name, section in SECTIONS.items():
        if name not in options.only:
            continue
        rows = list(section.measure(options.quick))
        results[name] = [row._asdict() for row in rows]
        if section.verdict is not None:
            results[f"{name}_verdict"] = section.verdict(rows).splitlines()
        if not options.json:
            console.print(table_of(f"{name}: {section.title}", rows))
            for line in results.get(f"{name}_verdict", []):
                console.print(line, highlight=False)
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
