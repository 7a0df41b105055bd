"""What a planner answers: the plan, what it runs on, its bounds and curves."""
