"""HTTP/1.1 as bytes and values: heads, body framing, who may ask. Sans I/O; h11 parses heads.

``runtime.http`` moves the bytes; nothing here knows a socket or a clock.
"""
