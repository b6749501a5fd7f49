"""One Spark session for all tests of a run, as cheap as it gets: import the fixture `spark` where it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_home import make_spark_home

SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tidings.spark.session import LOG_SETTINGS, spark_session

    options = (
        f"{SETTINGS['spark.driver.extraJavaOptions']} -Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(make_spark_home(tmp_path_factory.mktemp("spark"))))
        with spark_session(
            "local[2,3]", app="tests", settings={**SETTINGS, "spark.driver.extraJavaOptions": options}
        ) as session:
            yield session
