#include "cli/option_values.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>

namespace outrider {
namespace {

template <class T>
bool reads_as(const std::string& text, T& value) {
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  return fault == std::errc() && end == text.data() + text.size();
}

}  // namespace

CLI::Option* add_whole_into(CLI::App& app, const std::string& names, std::function<void(std::int64_t)> assign,
                            const std::string& help, WholeRange range) {
  const auto slot = std::make_shared<CLI::Option*>(nullptr);
  const auto take = [slot, range, assign = std::move(assign)](const CLI::results_t& texts) {
    std::int64_t value = 0;
    if (!reads_as(texts.front(), value) || value < range.least || value > range.most)
      throw CLI::ValidationError((*slot)->get_name(), fmt::format("\"{}\" is not a whole number from {} to {}",
                                                                  texts.front(), range.least, range.most));
    assign(value);
    return true;
  };
  return *slot = app.add_option(names, CLI::callback_t(take), help)->type_name("INT");
}

CLI::Option* add_decimal_into(CLI::App& app, const std::string& names, std::function<void(double)> assign,
                              const std::string& help) {
  const auto slot = std::make_shared<CLI::Option*>(nullptr);
  const auto take = [slot, assign = std::move(assign)](const CLI::results_t& texts) {
    double value = 0;
    if (!reads_as(texts.front(), value))
      throw CLI::ValidationError((*slot)->get_name(), fmt::format("\"{}\" is not a number", texts.front()));
    assign(value);
    return true;
  };
  return *slot = app.add_option(names, CLI::callback_t(take), help)->type_name("FLOAT");
}

CLI::Option* add_texts(CLI::App& app, const std::string& names, std::vector<std::string>& values,
                       const std::string& help) {
  const auto slot = std::make_shared<CLI::Option*>(nullptr);
  const auto take = [slot, &values](const CLI::results_t&) {
    values = (*slot)->results();  // as given: the parser reads "{}" in its own way
    return true;
  };
  *slot = app.add_option(names, CLI::callback_t(take), help)->type_name("TEXT");
  // Without extra arguments "[a,b]" is a text, not a list.
  return (*slot)->expected(1)->allow_extra_args(false)->take_all();
}

}  // namespace outrider
