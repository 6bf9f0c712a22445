"""What a model is: its shape, weights, forward pass and tokenizer."""
