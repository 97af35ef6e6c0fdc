"""This build on trial: the gradients against autograd, finite differences and the identities that they must keep."""
