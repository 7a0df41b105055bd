"""The answer of a planner: the plan, the workload that it runs, its bounds and curves."""
