"""All benches, one after the other, and the page that keeps what they said."""
