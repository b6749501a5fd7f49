"""What runs on Spark. Nothing else of tidings imports pyspark."""
