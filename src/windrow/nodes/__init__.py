"""Decentralized windows: local nodes slice where the events are, intermediate nodes merge, the root assembles.

    local ──┐
    local ──┴─▶ intermediate ──┐
    local ─────────────────────┴─▶ root ──▶ results

`machine` is a node without a transport, `messages` what nodes say to each other, `assembly` the root's state, and
`simulation` runs many machines in one process with faults from a seed. `process` is a node as a process: `flight` and
`link` carry its messages, `feed` reads its source, `config` and `tree` are its files.
"""
