"""The event side: frames of one lane (``subscriber``, ``stream``) into what all lanes hold (``index``)."""
