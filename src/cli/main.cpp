// outrider [global flags] VERB [arguments]: the one error fence around the program.
#include <cstdio>
#include <exception>
#include <new>

#include "cli/interrupts.h"
#include "cli/program.h"

namespace outrider {
namespace {

// A human error is one line, whatever a library put into its message.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

int report(const Error& error, OutputForm form) {
  const std::string hint = error.hint();
  // --json is one document: after the product a failure can only be told to people.
  if (form == OutputForm::jsonl || (form == OutputForm::json && json_documents_written() == 0))
    write_json(error_document(error.what(), hint, code_of(error.kind())));
  else
    std::fprintf(stderr, "outrider: %s%s%s\n", one_line(error.what()).c_str(), hint.empty() ? "" : "; ",
                 one_line(hint).c_str());
  return error.kind() == ErrorKind::interrupted && interrupted() != 0 ? interrupted() : static_cast<int>(error.kind());
}

int fenced(int argc, char** argv) {
  try {
    install_interrupts();
    Program program;
    try {
      return program.run(argc, argv);
    } catch (const Error& error) {
      return report(error, program.form());
    } catch (const std::bad_alloc&) {
      return report({ErrorKind::memory, "the system has no memory left", "lower --memory-budget or the context"},
                    program.form());
    } catch (const std::exception& error) {
      return report({ErrorKind::runtime, error.what()}, program.form());
    }
  } catch (const StdoutClosed&) {
    return 141;
  } catch (const Error& error) {  // stdout failed while the failure was written to it
    std::fprintf(stderr, "outrider: %s\n", error.what());
    return static_cast<int>(error.kind());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "outrider: %s\n", error.what());
    return static_cast<int>(ErrorKind::runtime);
  }
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::fenced(argc, argv); }
