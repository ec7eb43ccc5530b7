// Where a model's text side comes from: the files of its directory, or the metadata of its GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "text/gguf_tokenizer.h"
#include "text/model_text.h"
#include "weights/gguf.h"

namespace outrider {

// The tokenizer keys of a GGUF file as the text room takes them. Error (data) names the key of a value that does not
// fit.
GgufTokenizer gguf_tokenizer_metadata(const GgufFile& file);

// The text side of a model as resolve_model() names it; nothing when it has no tokenizer (raw ids still work).
std::optional<ModelText> load_text_of(const std::filesystem::path& model);

// Ids whose text is nothing but line ends, ascending: the newline ids that xtc spares (serving.md 2.2).
std::vector<std::int32_t> newline_ids(const Tokenizer& tokenizer);

// What load_text_of() will hold, judged by file sizes alone: an upper estimate for plans made before loading.
std::uint64_t estimated_text_bytes(const std::filesystem::path& model);

}  // namespace outrider
