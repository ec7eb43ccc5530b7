"""terminal_chat.py PROGRAM MODEL HOME: a chat on a pseudo-terminal. Ctrl-C at the prompt clears the line, during an
answer ends the answer; the history file is private."""
import os
import pty
import select
import stat
import sys
import time

program, model, home = sys.argv[1:4]
os.environ.update(HOME=home, XDG_STATE_HOME=home + "/state", TERM="xterm", NO_COLOR="1")
pid, terminal = pty.fork()
if pid == 0:
    os.execv(program, [program, "chat", model, "--seed", "1", "--temp", "1", "--ignore-eos", "-m", "1500"])
seen = b""


def wait_for(text, seconds=20):
    global seen
    end = time.monotonic() + seconds
    while text not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        assert ready, f"no {text!r} in {seen!r}"
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            assert text in seen, f"closed without {text!r}: {seen!r}"
    seen = seen[seen.index(text) + len(text) :]


wait_for(b"> ")
os.write(terminal, b"half a line")
wait_for(b"half a line")
os.write(terminal, b"\x03")  # clears the line; more than 2 s later a second one does the same
wait_for(b"> ")
time.sleep(2.1)
os.write(terminal, b"/set max-tokens=5\n")
wait_for(b"> ")
os.write(terminal, b"remember me\n")
wait_for(b"> ")
os.write(terminal, b"/quit\n")
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
history = home + "/state/outrider/history"
assert stat.S_IMODE(os.stat(history).st_mode) == 0o600, oct(os.stat(history).st_mode)
assert "remember" in open(history).read()
assert "half" not in open(history).read()
