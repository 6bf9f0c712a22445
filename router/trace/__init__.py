"""What a fleet showed, kept: record, show, replay, convert, what-if."""
