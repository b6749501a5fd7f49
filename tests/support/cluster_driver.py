"""A driver of a Spark cluster for tests: does what each line of its input says, as an application of its own.

A line is a command of `tidings` or ["stream", archive, room, master], as JSON; the answer is a line with its exit code
and what it printed. All have one JVM, which takes longer to start than to do any of this.
"""

from __future__ import annotations

import json
import subprocess
import sys

from command import tidings
from tidings.spark.session import spark_session

STREAM_SECONDS = 200


def stream(archive: str, room: str, master: str) -> subprocess.CompletedProcess[str]:
    """All that the archive has, into Parquet files in the room."""
    with spark_session(master) as spark:
        events = (
            spark.readStream.format("tidings").options(archive=archive, startingOffsets="earliest").load()
        )
        writer = events.writeStream.format("parquet").option("checkpointLocation", f"{room}/checkpoint")
        query = writer.trigger(availableNow=True).start(f"{room}/sink")
        assert query.awaitTermination(STREAM_SECONDS), "the stream does not end"
        assert query.exception() is None, query.exception()
    return subprocess.CompletedProcess([], 0, "", "")


if __name__ == "__main__":
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        done = stream(*arguments) if verb == "stream" else tidings(verb, *arguments)
        print(json.dumps((done.returncode, done.stdout, done.stderr)), flush=True)
