"""The store that memfabric before 1.2 needs: ``serving`` keeps and finds it, ``command`` is its process."""
