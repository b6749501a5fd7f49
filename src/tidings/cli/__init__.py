"""The command line: a file for each verb; what verbs share is in `shared`."""
