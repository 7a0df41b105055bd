"""What takes memory beside the parts of a step: the model, the loop, the allocator."""
