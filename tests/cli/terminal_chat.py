"""terminal_chat.py PROGRAM MODEL HOME: chats on pseudo-terminals. Ctrl-C at the prompt clears the line, twice leaves with
the terminal as it was; SIGTERM leaves with 143; the history is private, kept line by line through kills and second
chats, and cut at the start."""
import fcntl
import os
import pty
import select
import signal
import stat
import sys
import termios
import time

program, model, home = sys.argv[1:4]
os.environ.update(HOME=home, XDG_STATE_HOME=home + "/state", TERM="xterm", NO_COLOR="1")
history = home + "/state/outrider/history"


class Chat:
    def __init__(self):
        self.seen = b""
        # The slave stays open here: its settings are looked at after the program has gone.
        self.terminal, self.slave = pty.openpty()
        self.settings = termios.tcgetattr(self.slave)
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for descriptor in (0, 1, 2):
                os.dup2(self.slave, descriptor)
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            os.execv(program, [program, "chat", model, "--seed", "1", "--temp", "1", "--ignore-eos", "-m", "1500"])
        self.wait_for(b"> ")

    def wait_for(self, text, seconds=20):
        end = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.terminal], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self.seen!r}"
            self.seen += os.read(self.terminal, 65536)
        self.seen = self.seen[self.seen.index(text) + len(text) :]

    def type(self, text):
        os.write(self.terminal, text)

    def enter(self, text):
        self.type(text + b"\n")
        self.wait_for(b"> ")

    def ends_with(self, code):
        _, status = os.waitpid(self.pid, 0)
        assert os.waitstatus_to_exitcode(status) == code, status
        os.close(self.terminal)
        os.close(self.slave)


def kept():
    return open(history).read().splitlines()


chat = Chat()
chat.type(b"half a line")
chat.wait_for(b"half a line")
chat.type(b"\x03")  # clears the line; more than 2 s later a second one does the same
chat.wait_for(b"> ")
time.sleep(2.1)
chat.enter(b"/set max-tokens=5")
chat.enter(b"remember me")
assert kept() == ["/set max-tokens=5", "remember me"], kept()
assert stat.S_IMODE(os.stat(history).st_mode) == 0o600, oct(os.stat(history).st_mode)
assert stat.S_IMODE(os.stat(os.path.dirname(history)).st_mode) == 0o700
chat.type(b"/quit\n")
chat.ends_with(0)

# Two chats at a time, both killed: nothing is lost. The arrow brings lines of the chat before.
first, second = Chat(), Chat()
first.enter(b"/system one")
second.enter(b"/system two")
first.type(b"\x10")
first.wait_for(b"one")
os.kill(first.pid, signal.SIGKILL)
first.ends_with(-signal.SIGKILL)
second.type(b"\x03")
second.wait_for(b"> ")
second.type(b"\x03")
_, status = os.waitpid(second.pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert termios.tcgetattr(second.slave)[3] == second.settings[3], "the terminal is left without echo"
assert kept()[-3:] == ["/quit", "/system one", "/system two"], kept()

# SIGTERM at the prompt; a long history is cut when a chat starts.
with open(history, "a") as file:
    file.write("".join(f"line {i}\n" for i in range(1500)))
chat = Chat()
assert kept() == [f"line {i}" for i in range(500, 1500)], len(kept())
os.kill(chat.pid, signal.SIGTERM)
chat.ends_with(143)
