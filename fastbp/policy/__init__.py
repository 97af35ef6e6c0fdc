"""Rules and searches that choose a plan; they judge it by its schedule."""
