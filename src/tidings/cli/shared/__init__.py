"""What several verbs share: options, settings, output, exit codes, and the inner parts of `bench`."""
