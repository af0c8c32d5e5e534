"""Decentralized windows: local nodes slice where the events are, intermediate nodes merge, the root assembles.

    local ──┐
    local ──┴─▶ intermediate ──┐
    local ─────────────────────┴─▶ root ──▶ results

`protocol` has a node as a machine without a transport, `process` a node as a process; between them `transport` carries
messages, and `sources` reads events. What a tree finds out together is in `counting`, `quantiles` and `pushdown`.
"""
