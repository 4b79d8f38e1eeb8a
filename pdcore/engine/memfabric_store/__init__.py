"""The store that memfabric before 1.2 needs: ``serving`` keeps and finds it, ``__main__`` is its process."""
