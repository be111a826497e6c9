"""What a pickle holds beside dense tensors. Nothing in it is ever called."""
