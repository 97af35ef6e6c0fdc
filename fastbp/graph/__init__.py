"""What is computed: tensors, nodes and the decoder built of them."""
