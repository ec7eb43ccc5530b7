// SIGINT and SIGTERM (serving.md 1.3): the first asks the running verb to stop, a second within 2 s exits at once.
#pragma once

namespace outrider {

// Installs the handlers (and ignores SIGPIPE and SIGXFSZ: write says what they would). Once, from main.
void install_interrupts();

// 0, or the exit code of the signal that came: 130 or 143.
int interrupted();
// The interrupt has been dealt with (chat: the answer ended).
void clear_interrupt();

// Waits until `descriptor` can be read, or a signal has come, on whatever thread and however early.
enum class InputWait { ready, interrupted };
InputWait wait_for_input(int descriptor);

// A second signal leaves the terminal as it is now, whatever line editing does to it later.
void restore_terminal_at_exit(int descriptor);

// Exit code of a second signal within 2 s of the first: 130 or 143 by default; chat at its prompt leaves with 0 on
// SIGINT.
enum class SecondSignal { exits_with_signal, exits_cleanly };
void set_second_signal(SecondSignal action);

}  // namespace outrider
