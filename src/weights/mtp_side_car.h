// Finding the MTP head of a model outside its trunk (models.md 4.3). Inside this room only.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "weights/qwen3_5_layout.h"
#include "weights/safetensors_source.h"

namespace outrider {

struct MtpSideCar {
  std::unique_ptr<SafetensorsModel> model;  // null: none was found; every name starts with "mtp."
  std::string place;                        // the file or directory
  HeadEvidence evidence;
  std::string looked;  // when none was found: where
};

// The first of --mtp, the config's mtp_file, and the usual places in the model's directory. Error (data): a path given
// that is not there or holds no tensors, keys of both kinds, another width or vocabulary than the trunk's.
MtpSideCar find_mtp_side_car(const SafetensorsModel& trunk, const SourceOptions& options);

}  // namespace outrider
