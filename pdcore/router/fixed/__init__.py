"""A router without a store: fixed addresses, their health asked every second, and the keyspace in memory.

Reading order: standing, record (pure), asking, fleet (the shell), workers (what an operator sees and changes).
"""
