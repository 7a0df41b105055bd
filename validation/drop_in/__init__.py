"""A user's own loop within a budget: torch.compile(model, backend="schedsim").

`backend` and `in_place` give graphs of Dynamo to `traced_part`, which runs each by a schedule. Of
which steps a graph of the backend is a part, `backend_sessions` knows. A `session` follows the
steps (`step_calls`), measures some of them (`record_turns`, `step_meter`), and asks `step_plans`
for the schedules. What plans count is in `known_steps`. Plans are made for steps of which nothing
is known (`first_steps`), of one graph (`single_steps`), of several (`line_steps`), and of other
sizes (`other_sizes`). Modules named ``gathered`` do this for blocks
that gather parameters.
"""
