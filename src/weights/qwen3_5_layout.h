// Decides how a Qwen3.5 checkpoint is to be read (models.md 1.12): by what is recorded, else by evidence of the whole
// trunk, never by values. Inside this room but for the dims, which the graph's config shares.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weights/checkpoint_facts.h"
#include "weights/config.h"

namespace outrider {

// Dims of the gated delta net layers. Error (data): missing keys, values outside their range, Hv no multiple of Hk.
struct DeltaNetDims {
  std::int64_t key_heads = 0, value_heads = 0;  // Hk, Hv
  std::int64_t key_width = 0, value_width = 0;  // Dk, Dv
  std::int64_t taps = 0;                        // W
  std::int64_t keys() const { return key_heads * key_width; }
  std::int64_t values() const { return value_heads * value_width; }
  std::int64_t channels() const { return 2 * keys() + values(); }  // C
  std::int64_t group() const { return value_heads / key_heads; }   // r
};
DeltaNetDims read_delta_net_dims(const ConfigReader& config);

// Whether config.json names the family whose layouts this header is about.
bool is_qwen3_5(const nlohmann::json& config);

// What outrider.json beside config.json and the metadata of the weight files record; the former wins, and a warning
// says so where the two differ. Error (data): unknown keys of outrider.json, values that are not accepted.
struct RecordedFacts {
  template <class T>
  struct Recorded {
    T value;
    std::string origin;  // outrider.json or metadata
    std::string place;   // the file, or the directory of the files, that say it
  };
  std::optional<Recorded<TrunkLayout>> layout;
  std::optional<Recorded<NormCentre>> norms, mtp_norms;
  std::optional<Recorded<HiddenTap>> mtp_hidden_tap;
  std::optional<Recorded<L2Epsilon>> l2_eps;
};
// Of what `options` decide or leave unread no warning is given.
RecordedFacts recorded_facts(const std::filesystem::path& directory, const std::map<std::string, std::string>& metadata,
                             const SourceOptions& options);

// One conv1d.weight of a trunk.
struct ConvShape {
  std::string tensor;
  std::vector<std::int64_t> shape;
};
// Fills layout, layout_origin, norms and l2_eps; warns where evidence contradicts a recorded layout. Error (data)
// naming `origin`: convolutions of mixed or foreign shapes, evidence that contradicts itself, nothing to go by, an
// option that contradicts all evidence.
CheckpointFacts decide_layout(const RecordedFacts& recorded, const std::vector<ConvShape>& convolutions,
                              const DeltaNetDims& dims, const std::map<std::string, std::string>& metadata,
                              const SourceOptions& options, const std::string& origin);

// Whether this norm weight is stored as w where norms are zero-centred: all but linear_attn.norm, the head's too.
bool is_centred_norm(std::string_view tensor);

// Where the tensors of an MTP head were found.
enum class MtpPlace : std::uint8_t {
  trunk,
  folder_plain_keys,     // a directory of model_type qwen3_5_mtp, keys without "mtp."
  folder_prefixed_keys,  // the same, keys with it
  file                   // any other side-car
};
struct HeadEvidence {
  MtpPlace place = MtpPlace::trunk;
  std::map<std::string, std::string> metadata;  // of the files that hold it
  nlohmann::json config;                        // the side-car's; null: none
  std::string config_file;                      // its path
};
// Fills facts.mtp but for `place`, which is set: what the norms mean (the table of models.md 4.3) or that nothing says,
// and the tap (4.2). `config`: the trunk's, of the file `config_file`. Warns where what the trunk records overrules
// the metadata of a side-car. Error (data): values that are not accepted.
void decide_head(CheckpointFacts& facts, const HeadEvidence& head, const RecordedFacts& recorded,
                 const nlohmann::json& config, const std::string& config_file, const SourceOptions& options);

}  // namespace outrider
