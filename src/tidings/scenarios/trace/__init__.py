"""The six trace tables: `tables`, `writer`, `reader`; `checkers` says which guarantees a trace keeps."""
