#include "cli/bench_peer.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "weights/json_strict.h"

namespace outrider {
namespace {

constexpr const char* kProtocol = "bench/peers/README.md says what a peer writes";

nlohmann::json read_object(ChildProcess& process, const std::string& command) {
  const std::optional<std::string> line = process.read_line();
  if (!line)
    throw Error(ErrorKind::runtime, fmt::format("the peer \"{}\" ended without an answer", command),
                "run it by hand: it writes one JSON line when it is ready (bench/peers/README.md)");
  nlohmann::json object = nlohmann::json::parse(*line, nullptr, false);
  if (!object.is_object())
    throw Error(ErrorKind::runtime, fmt::format("the peer \"{}\" wrote no JSON object: {}", command, *line), kProtocol);
  if (const auto error = object.find("error"); error != object.end())
    throw Error(ErrorKind::runtime, fmt::format("the peer \"{}\" failed: {}", command, error->dump()),
                "run it by hand to see why");
  return object;
}

template <class T>
T member(const nlohmann::json& object, const char* key, const std::string& command) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_string() != std::is_same_v<T, std::string> ||
      (!found->is_string() && !found->is_number()))
    throw Error(ErrorKind::runtime, fmt::format("the peer \"{}\" gave no {}: {}", command, key, object.dump()),
                kProtocol);
  return found->get<T>();
}

}  // namespace

BenchPeer::BenchPeer(const std::string& command)
    : command_(command), process_(fmt::format("the peer \"{}\"", command), {"/bin/sh", "-c", "exec " + command}) {
  const nlohmann::json hello = read_object(process_, command_);
  name_ = member<std::string>(hello, "peer", command_);
  most_context_ = member<std::int64_t>(hello, "most_context", command_);
  most_rows_ = member<std::int64_t>(hello, "most_rows", command_);
}

double BenchPeer::seconds(const StepShape& shape) {
  process_.write_line(nlohmann::json({{"rows", shape.rows},
                                      {"tokens", shape.tokens},
                                      {"context", shape.context},
                                      {"head", shape.head == StepShape::Head::every ? "every" : "last"}})
                          .dump());
  const double seconds = member<double>(read_object(process_, command_), "seconds", command_);
  if (!(seconds > 0))
    throw Error(ErrorKind::runtime,
                fmt::format("the peer \"{}\" needed {} seconds, which is no time", command_, seconds), kProtocol);
  return seconds;
}

}  // namespace outrider
