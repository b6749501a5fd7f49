"""Runs some of a live scenario's publishers and subscribers in a process of their own.

`tidings up --scenario` starts it as `python -m tidings.scenarios.live.process`. It reads its work from stdin and ends
when stdin closes. It reports to stdout what its applications do and receive, one line each (`scenarios/live/facts.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from tidings.drivers.processes.control import wake_when_orphaned
from tidings.drivers.processes.stdin import each_line
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.client import LivePublisher, LiveSubscriber
from tidings.scenarios.live.facts import ClientWork, Go
from tidings.scenarios.live.link import ClientRole, LiveLink, SequencerLink, report
from tidings.scenarios.live.share_client import LiveShareSubscriber


def make_links(work: ClientWork) -> list[LiveLink]:
    """Return one link for each name. Subscribers first: at the same instant, subscribing comes before publishing."""
    places = {one.name: one.at for one in work.subscribers}
    places |= {one.plan.name: one.plan.at for one in work.publishers}
    lives = {one.name: one.made for one in work.subscribers if one.share is not None}
    lives |= {one.plan.name: one.lives for one in work.publishers}
    links = {}
    for name, at in places.items():
        sequencers = None
        if work.ordering is not None:
            sequencers = SequencerLink(work.ordering, all_are_there=work.go is None)
        links[name] = LiveLink(name, work.brokers[at], lives.get(name, 0), sequencers)
    for subscriber in work.subscribers:
        link = links[subscriber.name]
        if subscriber.share is None:
            LiveSubscriber(subscriber, link)
        else:
            LiveShareSubscriber(subscriber, subscriber.share, link, work.seed)
    for publisher in work.publishers:
        LivePublisher(publisher, links[publisher.plan.name], work.seed, work.end_ns)
    return list(links.values())


async def work_until_told() -> None:
    """Run until stdin closes or an error occurs, which is reported to the conductor."""
    orders = each_line()
    work = words.decode_work(await anext(orders))
    started: asyncio.Future[Go] = asyncio.get_running_loop().create_future()
    if work.go is not None:
        started.set_result(work.go)
    links = make_links(work)
    try:
        async with asyncio.TaskGroup() as tasks:
            life = tasks.create_task(live(links, started))
            async for line in orders:
                started.set_result(words.decode_go(line))
            life.cancel()
    finally:
        await asyncio.gather(*(link.close() for link in links))


async def live(links: Sequence[LiveLink], started: asyncio.Future[Go]) -> None:
    roles = [role for link in links for role in link.roles]
    roles.sort(key=lambda role: isinstance(role, LivePublisher))
    try:
        if started.done():
            give_start(roles, started.result())
        await asyncio.gather(*(link.open() for link in links))
        report(words.ReadyReport())
        give_start(roles, await started)
        await asyncio.gather(*(role.run() for role in roles))
    except Exception as error:
        report(words.FailedReport(f"client process failed: {type(error).__name__}: {error}"))
        raise


def give_start(roles: Sequence[ClientRole], go: Go) -> None:
    for role in roles:
        role.go = go


def main() -> None:
    from tidings.drivers.sockets.loop import run

    wake_when_orphaned()
    with suppress(BrokenPipeError, StopAsyncIteration):
        run(work_until_told())


if __name__ == "__main__":
    main()
