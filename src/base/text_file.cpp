#include "base/text_file.h"

#include "base/error.h"
#include "base/mapped_file.h"

namespace outrider {

std::string read_text_file(const std::filesystem::path& path, std::uintmax_t limit_bytes) {
  const MappedFile file(path);
  if (file.bytes().size() > limit_bytes)
    throw Error(ErrorKind::data,
                fmt::format("{}: {} bytes, the limit is {}", path.string(), file.bytes().size(), limit_bytes),
                "give a smaller file");
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace outrider
