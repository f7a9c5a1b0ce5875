"""From a run to a model in somebody's product."""
