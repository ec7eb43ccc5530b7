// The part of TOML that configuration files need: sections, dotted keys, strings of all four kinds, numbers, booleans
// and arrays of these. Tables inside values, dates and arrays of tables are refused by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outrider {

struct TomlEntry {
  std::vector<std::string> section;  // [a.b] and the dotted head of the key
  std::string key;
  std::vector<std::string> values;  // strings unquoted, numbers without '_', booleans as true and false
  int line = 0;
};

// Sections in `sections` even when they hold no key. Errors (usage) name `origin`, the line and the fault.
struct TomlFile {
  std::vector<TomlEntry> entries;
  std::vector<std::vector<std::string>> sections;
};
TomlFile read_toml(std::string_view text, const std::string& origin);

}  // namespace outrider
