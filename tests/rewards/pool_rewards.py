"""Badly behaved rewards for the pool's tests, importable in a worker process."""

import os
import subprocess
import sys
import time

from sparrow.rewards.outcome import Outcome


def behave(completion, row):
    """Does what the completion says; otherwise scores its number."""
    match completion.split():
        case ["hang"]:
            while True:
                time.sleep(3600)
        case ["spin"]:
            return float(len(str(9 ** (9**9))))  # one call that never gives the interpreter back
        case ["crash"]:
            os._exit(3)
        case ["raise"]:
            raise RuntimeError("as told")
        case ["exit"]:
            sys.exit(4)
        case ["hog"]:
            return float(len(bytearray(8 << 30)))
        case ["fork", number]:
            for _ in range(3):
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(3600)
            return float(number)
        case ["return_twice", number]:
            return float(number) if os.fork() else float(number) + 1000.0
        case ["raise_twice"]:
            os.fork()
            raise RuntimeError("as told")
        case ["foreign"]:
            import numpy  # here alone: every worker that is started anew would wait for it

            return Outcome(numpy.float32(0.5), "correct", detail=["no text"])
        case ["eat"]:
            eaten = []
            while True:
                eaten.append(bytes(64 << 20))
        case ["child"]:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
            time.sleep(3600)
        case ["print"]:
            print("noise on stdout")
            return 1.0
        case ["pid"]:
            return Outcome(float(os.getpid()), "correct")
        case ["sleep", seconds]:
            time.sleep(float(seconds))
            return 1.0
        case ["bad"]:
            return Outcome(float("nan"), "correct")
        case _:
            return Outcome(float(completion), "correct")
    return 0.0
