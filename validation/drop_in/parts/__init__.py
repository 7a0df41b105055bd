"""The parts of a step: what Dynamo has traced, as programs that run by schedules."""
