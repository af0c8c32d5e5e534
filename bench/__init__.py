"""The papers' experiments on windrow, on baselines and on systems that people would use instead: `python -m bench`."""
