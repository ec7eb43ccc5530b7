// What a request may say (serving.md 2 and 4.4) and what it may cost (5.2). A refusal names field, value and limit.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/engine.h"

namespace outrider {

// What requests are checked against.
struct RequestBounds {
  std::int64_t vocab = 0;           // prompt ids that are scored lie below it
  std::int64_t tokenizer_size = 0;  // all other ids lie below it: prompts to answer, bias, stops
  std::int64_t context_tokens = 0;
  std::int64_t kv_blocks = 0;            // of the whole pool
  std::uint64_t kv_bytes_per_block = 0;  // for the numbers of a refusal
  bool has_text = false;                 // stop strings need a tokenizer
};

std::optional<Refusal> check_request(const Request& request, const RequestBounds& bounds);

}  // namespace outrider
