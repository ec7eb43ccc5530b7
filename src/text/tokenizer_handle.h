// Private to src/text: what a Tokenizer owns, for TextStream.
#pragma once

#include "text/rust_call.h"
#include "text/tokenizer.h"

namespace outrider {

struct Tokenizer::Handle {
  struct Free {
    void operator()(outrider_tokenizer* tokenizer) const { outrider_tokenizer_free(tokenizer); }
  };
  std::unique_ptr<outrider_tokenizer, Free> tokenizer;
  outrider_tokenizer_facts facts{};
};

}  // namespace outrider
