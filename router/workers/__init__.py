"""Several router processes on one port: a parent that serves nothing, and workers that each are a whole router."""
