"""What a process keeps on disk: the broker's store, the sequencer's journal, the archive.

They share one way to open a SQLite database (database.py), to translate errors (troubles.py), to lock and atomically
replace a file (files.py), and to notice that acknowledged data is gone (mark.py). Read these, then `disk_store`
(`DiskStore`), `sequencer_store`, and the package `archive`.
"""
