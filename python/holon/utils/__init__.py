"""What stands around the framework: op libraries of one's own (cpp_extension)."""
