"""The checker's own reader of ONNX files: from untrusted bytes to plain frozen records.

Only the message classes of the onnx package are used, to take the bytes apart; none of its
helpers interprets anything. What has two readings is refused (`ModelReadError`).
"""
