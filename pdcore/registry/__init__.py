"""The watched, leased keyspace: stores, the follower, the registrar."""
