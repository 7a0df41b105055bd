"""Why a plan is as it is: explanations and what one change would buy."""
