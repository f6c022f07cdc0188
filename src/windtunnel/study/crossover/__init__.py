"""Where one device or framework overtakes another."""
