// outrider [global flags] VERB [arguments]: the one error fence around the program.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "cli/interrupts.h"
#include "cli/program.h"

namespace outrider {
namespace {

// Whether failures go to stdout as JSON; asked before the command line is understood, so by its words.
bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;
    if (word == "--json" || word == "--jsonl") return true;
  }
  for (const char* name : {"OUTRIDER_JSON", "OUTRIDER_JSONL"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0' && std::string_view(value) != "0" && std::string_view(value) != "false")
      return true;
  }
  return false;
}

// A human error is one line, whatever a library put into its message.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

int report(const Error& error, bool as_json) {
  const std::string hint = error.hint();
  if (as_json)
    write_json(error_document(error.what(), hint, code_of(error.kind())));
  else
    std::fprintf(stderr, "outrider: %s%s%s\n", one_line(error.what()).c_str(), hint.empty() ? "" : "; ",
                 one_line(hint).c_str());
  return error.kind() == ErrorKind::interrupted && interrupted() != 0 ? interrupted() : static_cast<int>(error.kind());
}

int fenced(int argc, char** argv) {
  const bool as_json = wants_json(argc, argv);
  try {
    try {
      install_interrupts();
      return Program().run(argc, argv);
    } catch (const Error& error) {
      return report(error, as_json);
    } catch (const std::bad_alloc&) {
      return report({ErrorKind::memory, "the system has no memory left", "lower --memory-budget or the context"},
                    as_json);
    } catch (const std::exception& error) {
      return report({ErrorKind::runtime, error.what()}, as_json);
    }
  } catch (const StdoutClosed&) {
    return 141;
  } catch (const Error& error) {  // stdout failed while the failure was written to it
    std::fprintf(stderr, "outrider: %s\n", error.what());
    return static_cast<int>(error.kind());
  }
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::fenced(argc, argv); }
