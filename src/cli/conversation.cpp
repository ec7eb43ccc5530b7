#include "cli/conversation.h"

#include "weights/json_strict.h"
#include "weights/safetensors_writer.h"

namespace outrider {

std::optional<std::string> Conversation::undo() {
  while (!turns_.empty()) {
    ChatMessage last = std::move(turns_.back());
    turns_.pop_back();
    if (last.role == "user") return std::move(last.content);
  }
  return std::nullopt;
}

std::vector<ChatMessage> Conversation::messages() const {
  std::vector<ChatMessage> all;
  if (!system_.empty()) all.push_back({"system", system_});
  all.insert(all.end(), turns_.begin(), turns_.end());
  return all;
}

void Conversation::save(const std::filesystem::path& file) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages()) list.push_back({{"role", message.role}, {"content", message.content}});
  const nlohmann::ordered_json document = {{"messages", std::move(list)}};
  write_file_whole(file, document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void Conversation::load(const std::filesystem::path& file) {
  const nlohmann::json document = read_json_file(file);
  const auto wrong = [&](std::string_view fact) {
    return Error(ErrorKind::data, fmt::format("{}: {}", file.string(), fact), "a file written by /save is needed");
  };
  if (!document.is_object() || !document.contains("messages") || !document["messages"].is_array())
    throw wrong("no list of messages");
  std::string system;
  std::vector<ChatMessage> turns;
  for (const nlohmann::json& item : document["messages"]) {
    const bool good = item.is_object() && item.contains("role") && item["role"].is_string() &&
                      item.contains("content") && item["content"].is_string();
    if (!good) throw wrong("a message lacks role or content");
    ChatMessage message{item["role"].get<std::string>(), item["content"].get<std::string>()};
    if (message.role == "system" && turns.empty() && system.empty())
      system = std::move(message.content);
    else if (message.role == "user" || message.role == "assistant")
      turns.push_back(std::move(message));
    else
      throw wrong(fmt::format("a message has the role {} (accepted: one system first, user, assistant)", message.role));
  }
  system_ = std::move(system);
  turns_ = std::move(turns);
}

}  // namespace outrider
