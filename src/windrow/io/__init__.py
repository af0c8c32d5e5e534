EVENTS_AT_ONCE = 1_000_000  # that are read or made at a time, about
