"""Predicted against reported: what the index promised, what the engine says it found, and what a difference means."""
