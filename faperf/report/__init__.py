"""What people and machines read of records: rows in, text out. No file is read here and nothing is decided."""
