"""Hostile code that hangs, crashes, bloats or corrupts the process of a scorer that executes answers."""

from __future__ import annotations


def hostile_disruptions() -> list[str]:
    """Every piece of code."""
    forgeries = [_FORGERY.format(number=number) for number in (0, 1, 5, 15)]
    return [*_ENDINGS, *_HANGS, *_BOMBS, *_TAMPERING, *forgeries]


_ENDINGS = (
    "import os; os._exit(0)",
    "import os; os._exit(1)",
    "import os; os.abort()",
    "import sys; sys.exit()",
    "import sys; sys.exit('result')",
    "raise SystemExit(0)",
    "raise KeyboardInterrupt",
    "raise GeneratorExit",
    "raise MemoryError",
    "raise RecursionError",
    "raise BaseException('x' * 10**6)",
    "raise BaseExceptionGroup('x', [ValueError(1)] * 1000)",
    "import ctypes; ctypes.string_at(0)",
    "import ctypes; ctypes.memset(id(None), 0, 64)",
    "import os; [os.close(fd) for fd in range(64) if not fd in ()]",
    "import os; os.closerange(0, 1000)",
    "import signal; signal.raise_signal(9)",
    "import signal; signal.setitimer(signal.ITIMER_REAL, .001); [None for _ in iter(int, 1)]",
    "import atexit, os; atexit.register(os._exit, 0); raise ValueError",
    "import sys; sys.stdout.close(); sys.stderr.close(); print(1)",
)

_HANGS = (
    "while True: pass",
    "import time; time.sleep(1000)",
    "import threading; threading.Event().wait()",
    "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "import signal; signal.sigwait({10})",
    "9**9**9**9",
    "10**10**10",
    "2**(2**40)",
    "str(7**10**7)",
    "sum(iter(int, 1))",
    "pow(3, 10**8) % 7",
    "import math; math.factorial(10**8)",
    "import re; re.match('(a+)+$', 'a' * 64 + 'b')",
    "import re; re.match('(.*)*x', 'a' * 5000)",
    "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except Exception: pass\n"
    "signal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass",
    "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "import sys; sys.setswitchinterval(1000)\nimport threading\n"
    "for _ in range(4): threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True).start()\nwhile True: pass",
    "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
    "class R:\n    def __eq__(self, other):\n        while True: pass\nresult = R()",
    "class R:\n    def __del__(self):\n        while True: pass\nr = R()",
    "import asyncio\nasync def f():\n    while True: await asyncio.sleep(0)\nasyncio.run(f())",
)

_BOMBS = (
    "x = bytearray(10**11)",
    "x = 'x' * 10**10",
    "x = []\nwhile True: x.append(bytearray(10**7))",
    "x = [0]\nwhile True: x += x",
    "x = 'a'\nwhile True: x += x",
    "x = {}\nwhile True: x[len(x)] = str(len(x))",
    "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(1000,)).start()",
    "import threading, time\nthreading.stack_size(32768)\n"
    "while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 1 << 30))",
    "import os\nwhile True: os.pipe()",
    "import socket\nx = []\nwhile True: x.append(socket.socketpair())",
    "import os\nr, w = os.pipe()\nwhile True: os.write(w, b'x' * 65536)",
    "def f(): f()\nf()",
    "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "import sys; sys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
    "'%9999999999d' % 1",
    "'{:>99999999999}'.format(1)",
    "f'{1:>{10**11}}'",
    "'%.9999999999f' % 1",
    "eval('(' * 10**5)",
    "eval('-' * 10**6 + '1')",
    "eval('[' * 90 + ']' * 90 + '*' + '9**' * 20 + '9')",
    "compile('0,' * 10**7, '', 'eval')",
    "import json; json.loads('[' * 10**6)",
    "import zlib; zlib.decompress(zlib.compress(bytes(10**10)))",
    "import decimal; decimal.getcontext().prec = 10**9; decimal.Decimal(2) ** decimal.Decimal('.5')",
    "import fractions; fractions.Fraction('1e999999999')",
    "int('9' * 10**6)",
    "import sys; sys.set_int_max_str_digits(0); str(int('9' * 10**6) ** 99)",
)

_TAMPERING = (
    "import sys; sys.modules.clear()",
    "import builtins; builtins.__dict__.clear()",
    "import builtins; builtins.float = lambda x: 1.0",
    "import builtins; builtins.isinstance = lambda *x: True",
    "import json; json.loads = json.dumps = None",
    "import os; os.write = os.read = None",
    "import os; os._exit = lambda code: None",
    "import struct; struct.Struct.pack = None",
    "from p2prl.tasks.sandbox import frames; frames.reply_bytes = lambda reply: b''",
    "from p2prl.tasks.sandbox import frames; frames.reply_bytes = lambda reply: b'\\xff' * 1000",
    "from p2prl.tasks.sandbox import frames; frames.MAX_SCORE = float('inf')\nraise ValueError('\\0\\x1b[2J' * 100)",
    "from p2prl.tasks.scorers import answer_scorer\nanswer_scorer.Composite.score = lambda *a: 1.0\nraise ValueError",
    "import gc\nfor x in gc.get_objects():\n    if isinstance(x, dict):\n        try: x.clear()\n        except Exception: pass",
    "import gc, sys\nfor x in gc.get_objects():\n    if isinstance(x, list):\n        try: x.clear()\n        except Exception: pass",
    "import sys; sys._getframe(1).f_locals.clear()\nimport sys; sys.settrace(lambda *a: 1 / 0)",
    "row.clear()",
    "row['answer'] = 0.0; result = 1",
    "import os\nfor fd in range(64):\n    try: os.write(fd, bytes(1000))\n    except OSError: pass",
    "import os\nfor fd in range(64):\n    try: os.write(fd, b'\\xff' * 10**5)\n    except OSError: pass",
    "import os\nwhile True:\n    for fd in range(64):\n        try: os.write(fd, bytes(65536))\n        except OSError: pass",
    "import os, time\nwhile True:\n    for fd in range(3, 64):\n        try: os.write(fd, b'\\0')\n        except OSError: pass\n"
    "    time.sleep(.05)",
    "import os\nfor fd in range(3, 64):\n    try: os.read(fd, 10**6)\n    except OSError: pass",
    "import os\nfor fd in range(3, 64):\n    try: os.dup2(0, fd)\n    except OSError: pass",
)

_FORGERY = """import os
from p2prl.tasks.sandbox import frames
data = b"".join(frames.reply_bytes(frames.Reply(n, 0, 99.0)) for n in range({number}, 16))
for fd in range(3, 64):
    try: os.write(fd, data)
    except OSError: pass
"""
"""Replies for answers of others, as many as fit: only the first may count, and only for itself."""
