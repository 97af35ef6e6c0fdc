"""Where every buffer lies: the layout of one arena, and the arena."""
