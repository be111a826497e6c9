"""Fill the hole of each tensor of the target, from its matched unit or in another way."""
