"""Holds what verbs share: options (`option_table`, `*_options`), settings checked from them (`*_settings`), output
(`output`, `event_printer`, `notices`), signals (`running`) and exit codes (`exits`)."""
