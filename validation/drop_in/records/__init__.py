"""What the steps of a loop were seen to do: their calls, their order, and the bytes around them."""
