#include "cli/verb.h"

#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "cli/interrupts.h"
#include "weights/json_strict.h"
#include "weights/local_models.h"

namespace outrider {

const std::string& required_model(const std::string& model) {
  if (model.empty())
    throw Error(ErrorKind::usage, "no MODEL is named",
                "name a model directory, a .gguf file, or a local model (see `outrider models list`)");
  return model;
}

LoadOptions load_options(const GlobalOptions& global, const std::string& model) {
  LoadOptions options;
  const std::filesystem::path embedded = model.empty() ? embedded_model() : std::filesystem::path();
  options.model = embedded.empty() ? required_model(model) : embedded.string();
  options.threads = global.threads;
  options.memory_budget_bytes = global.memory_budget_bytes;
  options.panels = global.panels;
  options.prefix_cache_bytes = 0;
  options.interrupted = [] { return interrupted() != 0; };
  return options;
}

std::unique_ptr<Engine> load_with_progress(const GlobalOptions& global, LoadOptions options) {
  Progress progress("loading", global.progress());
  options.progress = [&](std::string_view, double fraction) { progress.update(fraction); };
  return Engine::load(options);
}

Precision precision_from(const std::string& name) {
  if (name == "packed") return Precision::packed;
  if (name == "f32") return Precision::f32;
  throw Error(ErrorKind::usage, fmt::format("--precision is {} (accepted: packed, f32)", name), "name one of these");
}

std::uint64_t bytes_from(const std::string& text) {
  struct Unit {
    std::string_view name;
    int shift;
  };
  constexpr std::array<Unit, 10> kUnits = {{{"", 0},
                                            {"B", 0},
                                            {"KiB", 10},
                                            {"MiB", 20},
                                            {"GiB", 30},
                                            {"TiB", 40},
                                            {"k", 10},
                                            {"M", 20},
                                            {"G", 30},
                                            {"T", 40}}};
  double number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  if (fault == std::errc() && number > 0)
    for (const Unit& unit : kUnits) {
      const double bytes = std::ldexp(number, unit.shift);
      if (rest == unit.name && bytes >= 1 && bytes < 0x1p62) return static_cast<std::uint64_t>(bytes);
    }
  throw Error(ErrorKind::usage,
              fmt::format("\"{}\" is not a size (accepted: bytes, or a number with KiB, MiB, GiB, TiB)", text),
              "for example 8GiB");
}

std::string read_stdin(std::string_view what) {
  if (isatty(STDIN_FILENO) == 1)
    throw Error(ErrorKind::usage, fmt::format("no {} is given", what), "give it as an argument, or pipe it in");
  std::string text;
  std::array<char, 65536> buffer{};
  while (true) {
    if (wait_for_input(STDIN_FILENO) == InputWait::interrupted)
      throw Error(ErrorKind::interrupted, "interrupted while reading stdin");
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count == 0) return text;
    if (count > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      throw Error(ErrorKind::runtime, fmt::format("cannot read stdin: {}", std::strerror(errno)));
    }
  }
}

namespace {

Error no_id_between_commas(std::string_view origin) {
  return {ErrorKind::usage, fmt::format("{}: a token id is missing beside a comma", origin), "for example 1,2,3"};
}

}  // namespace

std::vector<std::int32_t> ids_from_list(std::string_view list, std::string_view origin) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  std::vector<std::int32_t> ids;
  bool comma = false;  // open: an id must follow
  for (std::size_t at = 0; at < list.size();) {
    if (is_space(list[at])) {
      ++at;
      continue;
    }
    if (list[at] == ',') {
      if (comma || ids.empty()) throw no_id_between_commas(origin);
      comma = true;
      ++at;
      continue;
    }
    comma = false;
    std::size_t end = at;
    while (end < list.size() && list[end] != ',' && !is_space(list[end])) ++end;
    const std::string_view piece = list.substr(at, end - at);
    std::int32_t id = 0;
    const auto [stop, fault] = std::from_chars(piece.data(), piece.data() + piece.size(), id);
    if (fault != std::errc() || stop != piece.data() + piece.size() || id < 0)
      throw Error(ErrorKind::usage, fmt::format("{}: \"{}\" is not a token id", origin, piece.substr(0, 40)),
                  "ids are whole numbers from 0, separated by commas or whitespace");
    ids.push_back(id);
    at = end;
  }
  if (comma) throw no_id_between_commas(origin);
  if (ids.empty()) throw Error(ErrorKind::usage, fmt::format("{}: no token ids", origin), "for example 1,2,3");
  return ids;
}

std::vector<std::int32_t> ids_from(const std::string& list_or_file) {
  // An existing file is a file, whatever its name; else a comma or nothing but numbers makes a list.
  const bool is_list = list_or_file.find(',') != std::string::npos ||
                       list_or_file.find_first_not_of("+-.0123456789 \t\n") == std::string::npos;
  if (is_list && !std::filesystem::exists(list_or_file)) return ids_from_list(list_or_file, "--ids");
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;
  return ids_from_list(read_text_file(list_or_file, kMostBytes), list_or_file);
}

namespace {

// By the codes of requests; a failure inside the engine has no remedy of the user's.
std::string remedy_of(std::string_view code) {
  if (code == "out_of_range") return "name a value that is allowed";
  if (code == "missing_field") return "give a longer prompt";
  if (code == "unsupported_parameter") return "leave it out";
  if (code == "conflicting_parameters") return "change one of the two";
  if (code == "context_length_exceeded" || code == "memory_contract")
    return "lower --max-tokens, shorten the prompt, or plan a larger --ctx";
  if (code == "grammar_dead_end") return "ban fewer tokens";
  if (code == "numeric_error") return "try --precision f32; if that fails too, the weights are damaged";
  return {};
}

}  // namespace

Error error_from(const Refusal& refusal) {
  const ErrorKind kind = refusal.code == "memory_contract" ? ErrorKind::memory
                         : refusal.http_status >= 500      ? ErrorKind::runtime
                                                           : ErrorKind::usage;
  return {kind, refusal.message, remedy_of(refusal.code)};
}

}  // namespace outrider
