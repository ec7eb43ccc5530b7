#include "weights/qwen3_5_source.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "weights/file_error.h"
#include "weights/mtp_side_car.h"
#include "weights/panel_place.h"
#include "weights/qwen3_5_layout.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

// The modules and norms of a head: 15 tensors, or more where modules are quantized.
constexpr std::array<std::string_view, 15> kHeadTensors{"mtp.fc",
                                                        "mtp.layers.0.input_layernorm",
                                                        "mtp.layers.0.mlp.down_proj",
                                                        "mtp.layers.0.mlp.gate_proj",
                                                        "mtp.layers.0.mlp.up_proj",
                                                        "mtp.layers.0.post_attention_layernorm",
                                                        "mtp.layers.0.self_attn.k_norm",
                                                        "mtp.layers.0.self_attn.k_proj",
                                                        "mtp.layers.0.self_attn.o_proj",
                                                        "mtp.layers.0.self_attn.q_norm",
                                                        "mtp.layers.0.self_attn.q_proj",
                                                        "mtp.layers.0.self_attn.v_proj",
                                                        "mtp.norm",
                                                        "mtp.pre_fc_norm_embedding",
                                                        "mtp.pre_fc_norm_hidden"};

bool is_head_tensor(std::string_view name) { return name.starts_with("mtp."); }

// Module path and part (".weight", ".scales") of a tensor name.
std::pair<std::string, std::string> split_part(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::pair(name, std::string()) : std::pair(name.substr(0, dot), name.substr(dot));
}

// A matrix that is some rows of a stored one.
struct Piece {
  std::string stored;  // module path
  std::vector<std::int64_t> rows;
};

// in_proj_qkvz holds, per key head, q [Dk], k [Dk], v [r*Dv], z [r*Dv]; in_proj_ba b [r], a [r] (models.md 1.12).
std::vector<std::pair<std::string_view, std::vector<std::int64_t>>> fused_rows(std::string_view suffix,
                                                                               const DeltaNetDims& d) {
  const auto take = [](std::vector<std::int64_t>& out, std::int64_t heads, std::int64_t stride, std::int64_t begin,
                       std::int64_t count) {
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < count; ++i) out.push_back(h * stride + begin + i);
  };
  if (suffix == "in_proj_ba") {
    std::vector<std::int64_t> b, a;
    take(b, d.key_heads, 2 * d.group(), 0, d.group());
    take(a, d.key_heads, 2 * d.group(), d.group(), d.group());
    return {{"in_proj_b", std::move(b)}, {"in_proj_a", std::move(a)}};
  }
  const std::int64_t values = d.group() * d.value_width, stride = 2 * d.key_width + 2 * values;
  std::vector<std::int64_t> qkv, z;
  take(qkv, d.key_heads, stride, 0, d.key_width);
  take(qkv, d.key_heads, stride, d.key_width, d.key_width);
  take(qkv, d.key_heads, stride, 2 * d.key_width, values);
  take(z, d.key_heads, stride, 2 * d.key_width + values, values);
  return {{"in_proj_qkv", std::move(qkv)}, {"in_proj_z", std::move(z)}};
}

// All of a head and nothing else, or an Error that names `place` and lists what is missing or foreign.
void check_head(const Checkpoint& checkpoint, const std::string& place) {
  std::vector<std::string_view> missing, foreign;
  for (const std::string_view module : kHeadTensors)
    if (checkpoint.find(std::string(module) + ".weight") == nullptr) missing.push_back(module);
  if (!missing.empty())
    throw file_error(place,
                     fmt::format("{} of the {} tensors of the MTP head are missing ({})", missing.size(),
                                 kHeadTensors.size(), fmt::join(missing, ", ")),
                     "download the rest of the head, or say --mtp off");
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (name.starts_with("mtp.layers.") && !name.starts_with("mtp.layers.0."))
      throw tensor_error(place, name, "is of a second MTP layer, 1 is supported", "say --mtp off");
    if (is_head_tensor(name) && !std::binary_search(kHeadTensors.begin(), kHeadTensors.end(), split_part(name).first))
      foreign.push_back(name);
  }
  if (!foreign.empty())
    throw file_error(
        place, fmt::format("{} tensors are of no part of an MTP head ({})", foreign.size(), fmt::join(foreign, ", ")),
        "take the head that belongs to this model, or say --mtp off");
}

class Qwen35Source final : public StoredModel {
 public:
  Qwen35Source(std::unique_ptr<SafetensorsModel> trunk, const SourceOptions& options);

  const CheckpointFacts* facts() const override { return &facts_; }
  Sha256Digest mtp_identity() const override;
  std::uint64_t stored_bytes() const override;
  bool has(std::string_view tensor) const override { return shapes_.contains(tensor); }
  std::vector<NamedShape> tensors() const override;
  std::vector<OpenedFile> weight_files() const override;
  MatrixRows rows(std::string_view path, std::int64_t k) const override;
  Values values(std::string_view tensor) const override;
  std::string reading() const override;
  std::string written_name(const std::string& tensor) const override;
  std::map<std::string, std::string> written_metadata() const override;

 private:
  std::vector<ConvShape> convolutions() const;
  void find_head(const RecordedFacts& recorded, const SourceOptions& options);
  void list_tensors();
  void list_fused(const std::string& name, const std::vector<std::int64_t>& shape);
  const SafetensorsModel& owner(std::string_view name) const {
    return side_car_ && is_head_tensor(name) ? *side_car_ : *trunk_;
  }
  std::string place_of(std::string_view tensor) const override { return owner(tensor).path().string(); }

  std::unique_ptr<SafetensorsModel> trunk_, side_car_;
  DeltaNetDims dims_;
  CheckpointFacts facts_;
  std::map<std::string, std::vector<std::int64_t>, std::less<>> shapes_;  // of every tensor shown
  std::map<std::string, Piece, std::less<>> pieces_;                      // by module path
};

Qwen35Source::Qwen35Source(std::unique_ptr<SafetensorsModel> trunk, const SourceOptions& options)
    : StoredModel(trunk->path()), trunk_(std::move(trunk)) {
  config_ = trunk_->config();
  generation_config_ = trunk_->generation_config();
  const std::string origin = path_.string();
  dims_ = read_delta_net_dims(ConfigReader(config_, (path_ / "config.json").string()));
  const std::map<std::string, std::string>& metadata = trunk_->checkpoint().metadata();
  const RecordedFacts recorded = recorded_facts(path_, metadata, options);
  facts_ = decide_layout(recorded, convolutions(), dims_, metadata, options, origin);
  find_head(recorded, options);
  list_tensors();
}

std::vector<ConvShape> Qwen35Source::convolutions() const {
  std::vector<ConvShape> found;
  for (const auto& [name, stored] : trunk_->checkpoint().tensors())
    if (name.ends_with(".conv1d.weight")) found.push_back({name, stored.tensor->shape});
  return found;
}

void Qwen35Source::find_head(const RecordedFacts& recorded, const SourceOptions& options) {
  MtpFacts& head = facts_.mtp;
  const std::string origin = path_.string();
  const auto& trunk_tensors = trunk_->checkpoint().tensors();
  const bool in_trunk = std::any_of(trunk_tensors.begin(), trunk_tensors.end(),
                                    [](const auto& tensor) { return is_head_tensor(tensor.first); });
  if (options.mtp == MtpUse::off) {
    head.state = in_trunk ? HeadState::off : HeadState::absent;
    if (in_trunk) head.place = origin;
    return;
  }
  MtpSideCar found;
  if (in_trunk) {
    if (!options.mtp_path.empty())
      throw Error(ErrorKind::usage,
                  fmt::format("--mtp names {}, and {} has an MTP head inside", options.mtp_path.string(), origin),
                  "leave --mtp out, or convert the model without its head (--mtp off)");
    found.place = origin;
    found.evidence.metadata = trunk_->checkpoint().metadata();
  } else {
    found = find_mtp_side_car(*trunk_, options);
    head.detail = found.looked;
  }
  if (in_trunk || found.model) {
    check_head(in_trunk ? trunk_->checkpoint() : found.model->checkpoint(), found.place);
    head.place = found.place;
    decide_head(facts_, found.evidence, recorded, config_, (path_ / "config.json").string(), options);
    side_car_ = std::move(found.model);
  }
  constexpr const char* kMeasure =
      "outrider bench mtp --readings measures both; record the winner as "
      "\"outrider.mtp_norms\" in outrider.json beside config.json";
  if (head.state == HeadState::ambiguous) {
    if (options.mtp == MtpUse::on)
      throw file_error(head.place, "the MTP head cannot be used: " + head.detail, kMeasure);
    log(LogLevel::warning, "{}: the MTP head is not used: {} ({})", head.place, head.detail, kMeasure);
  }
  if (head.state == HeadState::absent && options.mtp_hidden && options.idle == SourceOptions::Idle::refused)
    throw Error(ErrorKind::usage,
                fmt::format("--mtp-hidden {} is given, {} has no MTP head (looked for {})",
                            name_of(*options.mtp_hidden), origin, head.detail),
                "give the head with --mtp PATH, or say --mtp-hidden auto");
  if (head.state == HeadState::absent && options.mtp == MtpUse::on)
    throw file_error(origin, fmt::format("has no MTP head (looked for {})", head.detail),
                     "give it with --mtp PATH (logits: --mtp=PATH), or leave --mtp out");
  if (head.state == HeadState::absent) log(LogLevel::info, "{}: has no MTP head (looked for {})", origin, head.detail);
}

void Qwen35Source::list_tensors() {
  const auto show = [&](const Checkpoint& checkpoint) {
    for (const auto& [name, stored] : checkpoint.tensors()) {
      if (is_head_tensor(name)) {  // checked already
        if (facts_.mtp.state == HeadState::ready) shapes_[name] = stored.tensor->shape;
        continue;
      }
      for (const std::string_view part : {".mlp.experts.", ".mlp.shared_expert", ".mlp.gate."})
        if (name.find(part) != std::string::npos)
          throw tensor_error(path_.string(), name, "is of a mixture of experts, not available in this version",
                             kTakeAnother);
      list_fused(name, stored.tensor->shape);
    }
  };
  show(trunk_->checkpoint());
  if (side_car_) show(side_car_->checkpoint());
}

// Shows the tensor, or what it is cut into.
void Qwen35Source::list_fused(const std::string& name, const std::vector<std::int64_t>& shape) {
  const auto [path, part] = split_part(name);
  const std::size_t dot = path.rfind('.');
  const std::string_view last = std::string_view(path).substr(dot == std::string::npos ? 0 : dot + 1);
  if (last == "conv1d" && shape.size() == 3) {
    shapes_[name] = {dims_.channels(), dims_.taps, 1};
    return;
  }
  if ((last != "in_proj_qkvz" && last != "in_proj_ba") || shape.size() != 2) {
    shapes_[name] = shape;
    return;
  }
  std::int64_t rows = 0;
  for (auto& [module, taken] : fused_rows(last, dims_)) {
    const std::string shown = path.substr(0, dot + 1).append(module);
    if (trunk_->has(shown + ".weight"))
      throw tensor_error(path_.string(), name, fmt::format("holds the rows of {} a second time", in_quotes(shown)));
    rows += static_cast<std::int64_t>(taken.size());
    shapes_[shown + part] = {static_cast<std::int64_t>(taken.size()), shape[1]};
    pieces_[shown] = {path, std::move(taken)};
  }
  if (rows != shape[0])
    throw tensor_error(path_.string(), name, fmt::format("is {}, the config implies {} rows", shape_text(shape), rows));
}

std::uint64_t Qwen35Source::stored_bytes() const {
  return trunk_->stored_bytes() + (side_car_ ? side_car_->stored_bytes() : 0);
}

std::vector<StoredModel::NamedShape> Qwen35Source::tensors() const {
  std::vector<NamedShape> out;
  for (const auto& [name, shape] : shapes_) out.push_back({name, shape});
  return out;
}

std::vector<OpenedFile> Qwen35Source::weight_files() const {
  std::vector<OpenedFile> files = trunk_->weight_files();
  if (side_car_)
    for (OpenedFile& file : side_car_->weight_files()) files.push_back(std::move(file));
  return files;
}

MatrixRows Qwen35Source::rows(std::string_view path, std::int64_t k) const {
  const auto piece = pieces_.find(path);
  if (piece == pieces_.end()) {
    if (!has(std::string(path) + ".weight")) throw missing(std::string(path) + ".weight");
    return owner(path).rows(path, k);
  }
  MatrixRows all = trunk_->rows(piece->second.stored, k);
  all.info.n = static_cast<std::int64_t>(piece->second.rows.size());
  all.drop = {};  // its rows lie between those of the other pieces
  const std::vector<std::int64_t>& taken = piece->second.rows;
  const auto at = [&taken](std::int64_t row) { return taken[static_cast<std::size_t>(row)]; };
  if (all.affine)
    all.affine = [read = std::move(all.affine), at](std::int64_t row, std::uint8_t* codes, std::byte* scales,
                                                    std::byte* biases) { read(at(row), codes, scales, biases); };
  if (all.e2m1)
    all.e2m1 = [read = std::move(all.e2m1), at](std::int64_t row, std::uint8_t* codes, std::uint8_t* scales) {
      read(at(row), codes, scales);
    };
  if (all.dense)
    all.dense = [read = std::move(all.dense), at](std::int64_t row, std::byte* values) { read(at(row), values); };
  return all;
}

StoredModel::Values Qwen35Source::values(std::string_view tensor) const {
  const auto shown = shapes_.find(tensor);
  if (shown == shapes_.end()) throw missing(tensor);
  Values read = owner(tensor).values(tensor);
  read.shape = shown->second;
  const NormCentre norms = is_head_tensor(tensor) ? facts_.mtp.norms : facts_.norms;
  if (norms == NormCentre::one || !is_centred_norm(tensor)) return read;
  // Once, in f32; a stored sum would round to fewer bits.
  for (float& w : read.values) w = 1.0f + w;
  read.type = FloatType::f32;
  return read;
}

std::string Qwen35Source::reading() const {
  return fmt::format("norms {}, head {} {}", name_of(facts_.norms), name_of(facts_.mtp.state),
                     name_of(facts_.mtp.norms));
}

// mlx-lm names the text part of this family so; the head has no name there.
std::string Qwen35Source::written_name(const std::string& tensor) const {
  return is_head_tensor(tensor) ? tensor : "language_model." + tensor;
}

std::map<std::string, std::string> Qwen35Source::written_metadata() const {
  std::map<std::string, std::string> out{{"outrider.layout", "mlx"},
                                         {"outrider.norms", std::string(name_of(NormCentre::one))},
                                         {"outrider.l2_eps", std::string(name_of(facts_.l2_eps))}};
  if (facts_.mtp.state != HeadState::ready) return out;
  out["outrider.mtp_norms"] = name_of(NormCentre::one);
  out["outrider.mtp_hidden_tap"] = name_of(facts_.mtp.tap);
  return out;
}

Sha256Digest Qwen35Source::mtp_identity() const {
  OUTRIDER_CHECK(facts_.mtp.state == HeadState::ready, "identity of a head that is {}", name_of(facts_.mtp.state));
  Sha256 hash;
  for (const auto& [name, shape] : shapes_) {
    if (!is_head_tensor(name)) continue;
    const CheckpointTensor& stored = *owner(name).checkpoint().find(name);
    hash.add(fmt::format("{} {} {}\n", name, name_of(stored.tensor->dtype), shape_text(stored.tensor->shape)));
    hash.add(stored.file->bytes(*stored.tensor));
    stored.file->drop(*stored.tensor, 0, stored.tensor->bytes);
  }
  hash.add(reading());
  const Fingerprint trunk = panel_fingerprint(trunk_->weight_files(), config_);
  hash.add(std::as_bytes(std::span(trunk)));
  return hash.finish();
}

}  // namespace

std::unique_ptr<StoredModel> read_as_qwen3_5(std::unique_ptr<SafetensorsModel> trunk, const SourceOptions& options) {
  return std::make_unique<Qwen35Source>(std::move(trunk), options);
}

}  // namespace outrider
