"""``python -m bench engine``: how fast one engine computes, and how much memory its cache takes. One thread."""
