"""`solve(policy, models, objective)`: the paper's MBPO(pi, {f}, J) on learned models."""
