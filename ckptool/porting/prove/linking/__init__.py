"""Link the inputs of two models, so that both get the same values though they may take them in different forms."""
