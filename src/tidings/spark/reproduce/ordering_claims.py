from tidings.spark.reproduce.study import Claim


def claims_of(table):
    return []
