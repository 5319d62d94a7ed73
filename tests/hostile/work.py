"""Work for a child process, good and bad."""

import ctypes
import os
import time


def echo(text):
    return text + text


def fail(text):
    raise KeyError(text)


def devour(text):
    return str(len(bytearray(1 << 30)))


def spin(text):
    while True:
        pass


def sleep(text):
    time.sleep(60)
    return text


def crash(text):
    ctypes.string_at(0)
    return text


def vanish(text):
    os._exit(7)


def chatter(text):
    os.write(1, b"noise from native code")
    os.write(2, b"more noise")
    return text
