"""`tidings plan`: computes from subscriptions what an order costs, and a layout for its sequencers."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.options import ConnectTimeout, Json, Quiet, TlsAuthority, TokenFile, option
from tidings.cli.shared.output import print_json, print_line, print_table, progress_bar

if TYPE_CHECKING:
    from tidings.spark.plan.planning import OrderPlan, PlanRequest
    from tidings.spark.plan.sites import PlannedSites

SHOWN_TOPICS = 20
LIVE = ("tidings://", "tidings+tls://", "tidings+udp://")
LAYOUT_FILE = "layout.toml"
MADE_UP = "give the addresses with --sites, or change them below"
WHAT = {
    "planned": "this plan",
    "identifiers": "topics by identifier, an equal share at each site",
    "popularity": "where most popular, precedence by identifier",
    "paper": "the same, stamps go straight from topic to topic",
}

Subscriptions = Annotated[
    str,
    typer.Argument(
        metavar="SUBSCRIPTIONS",
        help="Table of client, topic[, site] (.parquet, .csv, .jsonl; - is CSV on stdin), trace, or broker URL.",
        show_default=False,
    ),
]
SitesPath = Annotated[
    Path | None,
    option("--sites", metavar="FILE", help="Sites, and where their sequencers listen (TOML)."),
]
Threshold = Annotated[
    int | None,
    option(
        "--threshold",
        metavar="N",
        min=1,
        max=2,
        help="Common clients that put two topics into a group: 1 causal, 2 total order. Default: 2.",
    ),
]
Causal = Annotated[bool, option("--causal", help="Plan for causal order (--threshold 1).")]
Weights = Annotated[
    Path | None,
    option("--weights", metavar="FILE", help="Table of topic, weight: how much is published on each."),
]
Rest = Annotated[bool, option("--rest", help="Order all other topics, too, with a last entry /**.")]
Out = Annotated[
    Path | None,
    option("--out", "-o", metavar="DIR", help="Directory for the layout, the groups and the sizes."),
]
Master = Annotated[
    str | None,
    option("--master", metavar="URL", help="Spark master that counts. Default: none, in this process."),
]


def plan(
    subscriptions: Subscriptions,
    sites: SitesPath = None,
    threshold: Threshold = None,
    causal: Causal = False,
    weights: Weights = None,
    rest: Rest = False,
    out: Out = None,
    master: Master = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plan total or causal order for a set of subscriptions.

    Shows sequencing groups, timestamp sizes, the precedence of topics, and which site should number what.
    """
    from tidings.spark.plan.planning import PlanRequest, make_plan
    from tidings.spark.plan.tables import read_weights

    if causal and threshold == 2:
        raise typer.BadParameter("must be 1 with --causal", param_hint="--threshold")
    listed = None if sites is None else read_sites(sites)
    published = None if weights is None else read_weights(weights)
    with progress_bar("plan", quiet=quiet) as progress:
        request = PlanRequest(1 if causal else threshold or 2, listed, published, rest, master, progress)
        if subscriptions.startswith(LIVE):
            found = plan_live(subscriptions, request, token_file, tls_ca, connect_timeout)
        else:
            found = make_plan(subscriptions, request)
    written = [] if out is None else write(found, out)
    if json:
        print_json({**found.summary(), "written": written})
    else:
        show(found)
        if out is not None:
            print_line(f"written to {out}: {', '.join(written)}")


def plan_live(
    url: str, request: PlanRequest, token_file: Path | None, tls_ca: Path | None, timeout_s: float
) -> OrderPlan:
    from tidings.bus.host import ApplicationHost
    from tidings.cli.shared.options import make_bus
    from tidings.cli.shared.running import run
    from tidings.spark.plan.live import fetch_rows
    from tidings.spark.plan.planning import plan_rows

    def bus_at(where: str) -> ApplicationHost:
        return make_bus(where, token_file=token_file, tls_authority=tls_ca, timeout_s=timeout_s)

    of_client = {} if request.sites is None else request.sites.of_client
    return plan_rows(url, run(fetch_rows(url, bus_at, of_client)), request)


def read_sites(path: Path) -> PlannedSites:
    from tidings.scenarios.file.toml_file import read_toml
    from tidings.spark.plan.sites_file import SitesFile, sites_of

    return sites_of(path, read_toml(path, SitesFile))


def write(found: OrderPlan, directory: Path) -> list[str]:
    """Write the files and return their names; `tidings sequencer --layout` reads the layout."""
    from tidings.drivers.processes.layout_file import layout_text
    from tidings.spark.plan.files import write_plan

    made = found.layout()  # raises before a file is written that could not be used
    names = write_plan(found, directory)
    if made is None:
        (directory / LAYOUT_FILE).unlink(missing_ok=True)
        return names
    layout, addresses = made
    text = layout_text(layout, addresses)
    if found.sites.made_up(site for site, _ in found.planned.servers()):
        text = f"# Where the nodes listen is made up: {MADE_UP}.\n{text}"
    (directory / LAYOUT_FILE).write_text(text, encoding="utf-8")
    return [LAYOUT_FILE, *names]


# --- Tables for people


def show(found: OrderPlan) -> None:
    summary = found.summary()
    print_table(
        found.source,
        ("what", "value"),
        [
            ("order", f"{summary['order']} (threshold {summary['threshold']})"),
            ("clients", summary["clients"]),
            ("topics", summary["topics"]),
            ("subscriptions", summary["subscriptions"]),
            ("sites", len(summary["sites"])),
            ("topics count by", summary["weighted_by"]),
        ],
    )
    for note in found.notes:
        print_line(f"note: {note}")
    if len(found.entries):
        show_sizes(found)
        show_placements(summary)
        show_servers(summary)
        show_precedence(found)


def show_sizes(found: OrderPlan) -> None:
    rows = [
        (f"by {by if by == 'topics' else found.weighted_by}", *astuple(sizes))
        for by, sizes in found.sizes.items()
        if sizes is not None
    ]
    print_table("entries of a timestamp", ("", "min", "mean", "p50", "p90", "p99", "max"), rows)


def show_placements(summary: dict[str, Any]) -> None:
    rows = [
        (f"{name}: {WHAT[name]}", f"{of['local']:.1%}", of["crossings"], of["servers"])
        for name, of in summary["placements"].items()
    ]
    headings = ("placement", "local stamps", "crossings per stamp", "servers")
    print_table("expected between sites", headings, rows)


def show_servers(summary: dict[str, Any]) -> None:
    rows = [(of["site"], len(of["topics"]), summary["sites"][of["site"]]) for of in summary["servers"]]
    print_table("planned servers, top of the chain first", ("site", "topics", "clients"), rows)


def show_precedence(found: OrderPlan) -> None:
    from tidings.spark.plan.files import group_rows

    rows = group_rows(found)
    shown = [
        (row["rank"], row["topic"], row["site"], row["subscribers"], row["entries"], row["local"])
        for row in rows[:SHOWN_TOPICS]
    ]
    title = "precedence" if len(rows) <= SHOWN_TOPICS else f"precedence, the first {SHOWN_TOPICS}"
    print_table(title, ("rank", "topic", "site", "subscribers", "entries", "local"), shown)
