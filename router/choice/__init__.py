"""The prompt side: text to token ids, matched tokens and load to a chosen lane."""
