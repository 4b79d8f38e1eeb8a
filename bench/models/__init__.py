"""The engine on SmolLM2 beside ``transformers`` on the same weights, in one process, alternately: ``python -m bench models``."""
