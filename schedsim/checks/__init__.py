"""What is wrong with a value or an argument, in one clear line."""
