"""Who is out there: replicas, what they are, how they are, and the lanes they have."""
