"""Decentralized windows: local nodes slice where the events are, intermediate nodes merge, the root assembles.

    local ──┐
    local ──┴─▶ intermediate ──┐
    local ─────────────────────┴─▶ root ──▶ results

`protocol` is a node without threads, sockets and clock, with the parts that find counting windows (`counting`),
quantiles (`quantiles`) and windows of single nodes (`pushdown`). `transport` carries its messages, `sources` has where
events come from, and `process` is a node as a process.
"""
