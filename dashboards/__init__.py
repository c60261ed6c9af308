"""What people look at, made from the queries' rows."""
