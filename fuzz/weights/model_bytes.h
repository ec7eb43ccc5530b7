// What the fuzzers of model files share: bytes as a file, and every tensor of a model read or refused.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "weights/stored_model.h"

namespace outrider {

// The bytes as a file with a path of its own.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : descriptor_(memfd_create("fuzz", 0)) {
    if (descriptor_ < 0 || write(descriptor_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// Runs `action`; any Error but one of kind data is a find.
template <class Action>
void accept_data_errors(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) std::abort();
  }
}

// Every matrix decoded and packed, every other tensor read.
inline void load_all(StoredModel& model) {
  for (const auto& tensor : model.tensors())
    accept_data_errors([&] {
      if (tensor.shape.size() != 2 || !tensor.name.ends_with(".weight")) {
        model.values(tensor.name);
        return;
      }
      const std::string path = tensor.name.substr(0, tensor.name.size() - 7);
      const ModuleInfo info = model.module(path, -1, -1);
      const PackedWeight packed = model.load_matrix(path, -1, -1, Precision::packed);
      if (packed.view.bytes() != packed_form(info, Precision::packed).bytes()) std::abort();
      model.load_matrix(path, -1, -1, Precision::f32);
    });
}

}  // namespace outrider
