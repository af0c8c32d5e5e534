"""The experiments of the papers, a module for each."""
