"""What a rank computes next. Pure: values in, a :class:`~pdcore.engine.scheduler.plan.StepPlan` out.

No socket, no tensor, no clock. ``base`` holds what all roles share (blocks, batches, growing, finishing); ``unified``,
``prefill`` and ``decode`` add the queues a request waits in before it may compute.
"""
