"""Judges somebody else's publisher: ``listener`` gathers what it sends, ``judge`` holds it to the rules."""
