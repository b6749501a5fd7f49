"""What a process keeps on disk, whoever keeps it: the broker's store, the sequencer's journal, the archive.

One way to open a SQLite database (database.py), one translation of errors (troubles.py), one lock and one atomic
replacement of a file (files.py), one mark that tells whether what was acknowledged is still there (mark.py).
"""
