"""The differentiable side: log-partitions, exact samples, what baselines decode instead of z.

One file per method, in the log domain throughout: functions of finite scores, no checks, no
classes.
"""
