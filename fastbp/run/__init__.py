"""How it is done: kernels, the program that calls them and the workers that run it."""
