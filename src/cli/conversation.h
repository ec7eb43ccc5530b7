// The messages of a chat and what its commands do to them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace outrider {

class Conversation {
 public:
  // Empty: no system message.
  void set_system(std::string text) { system_ = std::move(text); }
  const std::string& system() const { return system_; }

  void add_user(std::string text) { turns_.push_back({"user", std::move(text)}); }
  void add_answer(std::string text) { turns_.push_back({"assistant", std::move(text)}); }
  void clear() { turns_.clear(); }
  // Takes the last question and what answers it away; the question, or nothing when there is none.
  std::optional<std::string> undo();
  bool empty() const { return turns_.empty(); }
  std::size_t turns() const { return turns_.size(); }

  // The system message, then the turns.
  std::vector<ChatMessage> messages() const;

  // {"messages":[{"role","content"}...]}; written whole or not at all. Error (data, runtime) names file and fault, and
  // the conversation is unchanged.
  void save(const std::filesystem::path& file) const;
  void load(const std::filesystem::path& file);

 private:
  std::string system_;
  std::vector<ChatMessage> turns_;  // user and assistant
};

}  // namespace outrider
