"""Commands of `gradvet` that have a file of their own, and what all commands share."""
