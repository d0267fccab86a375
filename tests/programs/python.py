"""Runs test modules of python's own suite and prints a line for each test: `ok NAME`, `not ok NAME: REASON`,
`skip NAME: REASON`, as the guest tests do. `module NAME` and `start NAME` say what runs, and `end` that all have run.

Arguments: names of modules (`test_os`), each with an optional class (`test_socket:BasicUnixTest`), or `-x NAME` for a
test that is not to be run. A module runs in a process of its own; when one test takes the process down or hangs, that
test has failed and another process runs the ones after it.
"""

import subprocess
import sys
import unittest

QUIET_MAX_S = 240


def flatten(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


def last_line(error):
    kind, value, _ = error
    words = " ".join(f"{kind.__name__}: {value}".split())
    return words[:300]


def work(module, classes, seen):
    """Runs a module's tests but those that were `seen`."""
    import faulthandler
    import importlib

    class Result(unittest.TestResult):
        def say(self, text):
            sys.__stdout__.write("\n" + text + "\n")
            sys.__stdout__.flush()

        def startTest(self, test):
            super().startTest(test)
            faulthandler.dump_traceback_later(QUIET_MAX_S, exit=True)
            self.bad = None
            self.excuse = None
            self.say(f"@start {test.id()}")

        def stopTest(self, test):
            super().stopTest(test)
            faulthandler.cancel_dump_traceback_later()
            if self.bad:
                self.say(f"@not ok {test.id()}: {self.bad}")
            elif self.excuse is not None:
                self.say(f"@skip {test.id()}: {self.excuse}")
            else:
                self.say(f"@ok {test.id()}")

        def blame(self, test, error):
            if isinstance(test, unittest.TestCase):
                self.bad = self.bad or last_line(error)
            else:
                self.say(f"@not ok {test.id()}: {last_line(error)}")

        def addError(self, test, error):
            self.blame(test, error)

        def addFailure(self, test, error):
            self.blame(test, error)

        def addSubTest(self, test, subtest, error):
            if error is not None:
                self.blame(test, error)

        def addSkip(self, test, reason):
            # A part of a test may be skipped, and a whole class.
            if isinstance(test, unittest.case._SubTest):
                return
            if isinstance(test, unittest.TestCase):
                self.excuse = reason
            else:
                self.say(f"@skip {test.id()}: {reason}")

        def addExpectedFailure(self, test, error):
            pass

        def addUnexpectedSuccess(self, test):
            self.bad = "passes, which is not expected"

    try:
        loaded = importlib.import_module(f"test.{module}")
        suite = unittest.defaultTestLoader.loadTestsFromModule(loaded)
    except unittest.SkipTest as reason:
        print(f"\n@skip {module}: {reason}", flush=True)
        return
    from test import support

    support.verbose = 0
    tests = [
        test
        for test in flatten(suite)
        if test.id() not in seen and (not classes or type(test).__name__ in classes)
    ]
    unittest.TestSuite(tests).run(Result())
    print("\n@end", flush=True)


def run(module, classes, excluded):
    """Runs a module in as many processes as it takes."""
    seen = set(excluded)
    while True:
        command = [sys.executable, __file__, "--work", module, ",".join(classes), *sorted(seen)]
        worker = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, errors="replace"
        )
        running, ended, tail = None, False, []
        for line in worker.stdout:
            line = line.rstrip("\n")
            if not line.startswith("@"):
                tail = (tail + [line])[-40:]
                continue
            word, _, rest = line[1:].partition(" ")
            if word == "start":
                running, tail = rest, []
                seen.add(rest)
                print(line[1:], flush=True)
            elif word == "end":
                ended = True
                break
            else:
                print(line[1:], flush=True)
                if word == "not":
                    for text in tail:
                        print(f"    {text}")
                running = None
        # What a test left running may hold the other end of the pipe open.
        worker.stdout.close()
        if ended:
            worker.kill()
        status = worker.wait()
        if ended:
            return
        if running is None:
            if status != 0:
                print(f"not ok {module}: the process ended with {status}", flush=True)
                for text in tail:
                    print(f"    {text}")
            return
        print(f"not ok {running}: the process ended with {status}", flush=True)
        for text in tail:
            print(f"    {text}", flush=True)


def main():
    if sys.argv[1:2] == ["--work"]:
        module, classes, *seen = sys.argv[2:]
        work(module, [name for name in classes.split(",") if name], set(seen))
        return
    names, excluded = [], []
    arguments = iter(sys.argv[1:])
    for argument in arguments:
        if argument == "-x":
            excluded.append(next(arguments))
        else:
            names.append(argument)
    for name in names:
        print(f"module {name}", flush=True)
        module, _, classes = name.partition(":")
        run(module, classes.split(",") if classes else [], excluded)
    print("end", flush=True)


if __name__ == "__main__":
    main()
