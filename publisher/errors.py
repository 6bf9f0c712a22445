"""What a publisher raises."""

__all__ = ["PublisherError"]


class PublisherError(RuntimeError):
    """An endpoint that cannot be opened, or a publisher used after its end; one line that names the cause."""
