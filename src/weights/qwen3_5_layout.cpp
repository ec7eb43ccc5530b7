#include "weights/qwen3_5_layout.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "kernels/kernel_table.h"
#include "weights/file_error.h"
#include "weights/json_strict.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kCorrectRecord = "correct what is recorded there, or remove it";

template <class T>
using Spelling = std::pair<std::string_view, T>;
constexpr std::array<Spelling<TrunkLayout>, 2> kLayouts{{{"hf", TrunkLayout::hf}, {"mlx", TrunkLayout::mlx}}};
constexpr std::array<Spelling<NormCentre>, 2> kNorms{
    {{"zero_centred", NormCentre::zero}, {"one_centred", NormCentre::one}}};
constexpr std::array<Spelling<L2Epsilon>, 2> kL2Eps{{{"hf", L2Epsilon::hf}, {"mlx", L2Epsilon::mlx}}};
constexpr std::array<Spelling<HiddenTap>, 2> kTaps{
    {{"pre_norm", HiddenTap::pre_norm}, {"post_norm", HiddenTap::post_norm}}};
constexpr std::array<Spelling<HeadState>, 4> kStates{{{"absent", HeadState::absent},
                                                      {"ready", HeadState::ready},
                                                      {"ambiguous", HeadState::ambiguous},
                                                      {"off", HeadState::off}}};

template <class T, std::size_t N>
std::string_view spelled(const std::array<Spelling<T>, N>& all, T value) {
  for (const auto& [text, known] : all)
    if (known == value) return text;
  OUTRIDER_CHECK(false, "value {} has no spelling", static_cast<int>(value));
}

template <class T, std::size_t N>
T read_spelling(const std::array<Spelling<T>, N>& all, std::string_view text, std::string_view origin,
                std::string_view key) {
  std::string accepted;
  for (const auto& [spelling, value] : all) {
    if (spelling == text) return value;
    accepted += (accepted.empty() ? "" : ", ") + std::string(spelling);
  }
  throw file_error(origin, fmt::format("{} is {} (accepted: {})", key, in_quotes(text), accepted), kCorrectRecord);
}

// The user's word wins; what it overrules is said, since a wrong reading gives fluent nonsense.
template <class T>
void warn_if_overruled(std::string_view file, std::string_view key, T recorded, std::string_view origin, T other) {
  if (recorded != other)
    log(LogLevel::warning, "{}: {} is {}, {} says {}: the former is taken; remove it if it was not meant", file, key,
        name_of(recorded), origin, name_of(other));
}

constexpr const char* kRecordFile = "outrider.json";
constexpr const char* kLayoutKey = "outrider.layout";
constexpr const char* kNormsKey = "outrider.norms";
constexpr const char* kMtpNormsKey = "outrider.mtp_norms";
constexpr const char* kTapKey = "outrider.mtp_hidden_tap";
constexpr const char* kL2EpsKey = "outrider.l2_eps";
constexpr const char* kSourceKey = "outrider.source_sha256";

// The keys of outrider.json, or nothing where there is none.
std::map<std::string, std::string> read_record_file(const fs::path& path) {
  std::error_code failed;
  if (!fs::exists(path, failed)) return {};
  const json document = read_json_file(path);
  if (!document.is_object()) throw file_error(path.string(), "is not a JSON object", kCorrectRecord);
  std::map<std::string, std::string> keys;
  const std::array known{kLayoutKey, kNormsKey, kMtpNormsKey, kTapKey, kL2EpsKey, kSourceKey};
  for (const auto& [key, value] : document.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw file_error(path.string(),
                       fmt::format("the key {} is not known (accepted: {})", in_quotes(key),
                                   fmt::join(known.begin(), known.end(), ", ")),
                       kCorrectRecord);
    if (!value.is_string()) throw file_error(path.string(), fmt::format("{} is not a string", key), kCorrectRecord);
    keys[key] = value.get<std::string>();
  }
  return keys;
}

std::optional<TrunkLayout> layout_of_shape(const ConvShape& conv, const DeltaNetDims& dims) {
  if (conv.shape == std::vector{dims.channels(), std::int64_t{1}, dims.taps}) return TrunkLayout::hf;
  if (conv.shape == std::vector{dims.channels(), dims.taps, std::int64_t{1}}) return TrunkLayout::mlx;
  return std::nullopt;
}

// The layout every convolution of the trunk has; nullopt without convolutions.
std::optional<TrunkLayout> layout_of_shapes(const std::vector<ConvShape>& convolutions, const DeltaNetDims& dims,
                                            const std::string& origin) {
  std::optional<TrunkLayout> found;
  for (const ConvShape& conv : convolutions) {
    const std::optional<TrunkLayout> layout = layout_of_shape(conv, dims);
    if (!layout)
      throw tensor_error(origin, conv.tensor,
                         fmt::format("is {}, the config implies [{}, 1, {}] or [{}, {}, 1]", shape_text(conv.shape),
                                     dims.channels(), dims.taps, dims.channels(), dims.taps));
    if (found && *found != *layout)
      throw tensor_error(origin, conv.tensor,
                         fmt::format("is {}, {} is {}: a trunk has one layout", shape_text(conv.shape),
                                     in_quotes(convolutions.front().tensor), shape_text(convolutions.front().shape)),
                         "the shards are of different conversions");
    found = layout;
  }
  return found;
}

// What metadata.format says: mlx tools write "mlx", transformers writes "pt".
std::optional<TrunkLayout> layout_of_format(const std::map<std::string, std::string>& metadata) {
  const auto format = metadata.find("format");
  if (format == metadata.end()) return std::nullopt;
  if (format->second == "mlx") return TrunkLayout::mlx;
  return format->second == "pt" ? std::optional(TrunkLayout::hf) : std::nullopt;
}

std::pair<TrunkLayout, std::string> layout_by_evidence(std::optional<TrunkLayout> by_shape,
                                                       std::optional<TrunkLayout> by_format,
                                                       const SourceOptions& options, const std::string& origin) {
  if (options.layout) {
    if ((by_shape || by_format) && by_shape != options.layout && by_format != options.layout)
      throw file_error(
          origin,
          fmt::format("the layout {} was asked for, {} says {}", name_of(*options.layout),
                      by_shape ? "the shape of conv1d" : "metadata.format", name_of(by_shape ? *by_shape : *by_format)),
          "leave --layout out");
    return {*options.layout, "--layout"};
  }
  if (!by_shape)
    throw file_error(origin, "has no conv1d.weight, so nothing says whether its norms are zero- or one-centred",
                     "say --layout hf or --layout mlx");
  if (by_format && by_format != by_shape)
    throw file_error(
        origin,
        fmt::format("metadata.format says {}, the shape of conv1d says {}", name_of(*by_format), name_of(*by_shape)),
        "say --layout hf or --layout mlx; it decides whether norm weights are w or 1+w");
  return {*by_shape, "the shape of conv1d"};
}

}  // namespace

std::string_view name_of(TrunkLayout layout) { return spelled(kLayouts, layout); }
std::string_view name_of(NormCentre norms) { return spelled(kNorms, norms); }
std::string_view name_of(L2Epsilon eps) { return spelled(kL2Eps, eps); }
std::string_view name_of(HiddenTap tap) { return spelled(kTaps, tap); }
std::string_view name_of(HeadState state) { return spelled(kStates, state); }

DeltaNetDims read_delta_net_dims(const ConfigReader& config) {
  DeltaNetDims dims;
  dims.key_heads = config.dimension("linear_num_key_heads");
  dims.value_heads = config.dimension("linear_num_value_heads");
  if (dims.value_heads % dims.key_heads != 0)
    throw config.refuse("linear_num_value_heads",
                        fmt::format("a multiple of linear_num_key_heads = {}", dims.key_heads));
  dims.key_width = config.integer("linear_key_head_dim", 1, kMaxDeltaKeys);
  dims.value_width = config.dimension("linear_value_head_dim");
  dims.taps = config.integer("linear_conv_kernel_dim", 2, kMaxConvTaps);
  // Each factor is below 2^24, so the sum cannot overflow.
  if (dims.channels() > ConfigReader::kMaxDimension)
    throw config.refuse("linear_value_head_dim",
                        fmt::format("conv channels 2*Hk*Dk + Hv*Dv at most {}", ConfigReader::kMaxDimension));
  return dims;
}

bool is_qwen3_5(const json& config) {
  const auto type = config.find("model_type");
  return type != config.end() && (*type == "qwen3_5" || *type == "qwen3_5_text");
}

RecordedFacts recorded_facts(const fs::path& directory, const std::map<std::string, std::string>& metadata,
                             const SourceOptions& options) {
  const std::string file = (directory / kRecordFile).string();
  const std::map<std::string, std::string> own = read_record_file(directory / kRecordFile);
  RecordedFacts out;
  enum class Use : std::uint8_t { counts, decided_elsewhere };
  const auto read = [&](const char* key, const auto& spellings, auto& into, Use use = Use::counts) {
    using T = std::remove_reference_t<decltype(into->value)>;
    for (const auto& [keys, origin] :
         {std::pair(&own, file), std::pair(&metadata, directory.string() + " (metadata)")}) {
      const auto found = keys->find(key);
      if (found == keys->end()) continue;
      const T value = read_spelling(spellings, found->second, origin, key);
      if (!into)
        into = RecordedFacts::Recorded<T>{value, keys == &own ? kRecordFile : "metadata", origin};
      else if (use == Use::counts)
        warn_if_overruled(file, key, into->value, origin, value);
    }
  };
  read(kLayoutKey, kLayouts, out.layout);
  read(kNormsKey, kNorms, out.norms);
  const auto of_head = [&](bool decided) {
    return decided || options.mtp == MtpUse::off ? Use::decided_elsewhere : Use::counts;
  };
  read(kMtpNormsKey, kNorms, out.mtp_norms, of_head(options.mtp_norms.has_value()));
  read(kTapKey, kTaps, out.mtp_hidden_tap, of_head(options.mtp_hidden.has_value()));
  read(kL2EpsKey, kL2Eps, out.l2_eps);
  return out;
}

CheckpointFacts decide_layout(const RecordedFacts& recorded, const std::vector<ConvShape>& convolutions,
                              const DeltaNetDims& dims, const std::map<std::string, std::string>& metadata,
                              const SourceOptions& options, const std::string& origin) {
  const std::optional<TrunkLayout> by_shape = layout_of_shapes(convolutions, dims, origin),
                                   by_format = layout_of_format(metadata);
  CheckpointFacts facts;
  if (recorded.layout) {
    if (options.layout && *options.layout != recorded.layout->value)
      throw file_error(origin,
                       fmt::format("the layout {} was asked for, {} records {}", name_of(*options.layout),
                                   recorded.layout->origin, name_of(recorded.layout->value)),
                       "leave --layout out");
    facts.layout = recorded.layout->value;
    facts.layout_origin = recorded.layout->origin;
    const std::string where = fmt::format("{} ({})", origin, facts.layout_origin);
    if (by_shape) warn_if_overruled(where, kLayoutKey, facts.layout, "the shape of conv1d", *by_shape);
    if (by_format) warn_if_overruled(where, kLayoutKey, facts.layout, "metadata.format", *by_format);
  } else {
    std::tie(facts.layout, facts.layout_origin) = layout_by_evidence(by_shape, by_format, options, origin);
  }
  const NormCentre by_layout = facts.layout == TrunkLayout::hf ? NormCentre::zero : NormCentre::one;
  facts.norms = recorded.norms ? recorded.norms->value : by_layout;
  facts.l2_eps = recorded.l2_eps ? recorded.l2_eps->value : L2Epsilon::hf;
  return facts;
}

bool is_centred_norm(std::string_view tensor) {
  if (!tensor.ends_with(".weight")) return false;
  for (const std::string_view name : {".input_layernorm.weight", ".post_attention_layernorm.weight",
                                      ".self_attn.q_norm.weight", ".self_attn.k_norm.weight"})
    if (tensor.ends_with(name)) return true;
  return tensor == "model.norm.weight" || tensor == "mtp.norm.weight" || tensor == "mtp.pre_fc_norm_embedding.weight" ||
         tensor == "mtp.pre_fc_norm_hidden.weight";
}

namespace {

// Keys that MTPLX leaves in config.json; it shifts the head's norms and keeps the prefix of their names.
bool has_mtplx_key(const json& config) {
  const auto any = [](const json& object) {
    for (const auto& [key, value] : object.items())
      if (key.starts_with("mtplx_")) return true;
    return false;
  };
  const auto text = config.find("text_config");
  return any(config) || (text != config.end() && text->is_object() && any(*text));
}

// What the metadata of a head's own files says under a key. Where the head lies in the trunk, that is recorded already.
template <class T, std::size_t N>
std::optional<T> said_by_head(const HeadEvidence& head, const std::array<Spelling<T>, N>& spellings, const char* key,
                              const std::optional<RecordedFacts::Recorded<T>>& recorded, const std::string& place) {
  const auto found = head.metadata.find(key);
  if (head.place == MtpPlace::trunk || found == head.metadata.end()) return std::nullopt;
  const T value = read_spelling(spellings, found->second, place, key);
  if (recorded) warn_if_overruled(recorded->place, key, recorded->value, place, value);
  return value;
}

std::optional<NormCentre> norms_of_head(const HeadEvidence& head, const CheckpointFacts& facts,
                                        const RecordedFacts& recorded, const json& config,
                                        const SourceOptions& options) {
  if (options.mtp_norms) return options.mtp_norms;
  const auto by_head = said_by_head(head, kNorms, kMtpNormsKey, recorded.mtp_norms, facts.mtp.place);
  if (recorded.mtp_norms) return recorded.mtp_norms->value;
  if (by_head) return by_head;
  const TrunkLayout layout = facts.layout;
  if (head.place == MtpPlace::folder_plain_keys) return NormCentre::one;
  if (head.place == MtpPlace::folder_prefixed_keys) return NormCentre::zero;
  if (layout == TrunkLayout::hf) return head.place == MtpPlace::trunk ? std::optional(NormCentre::zero) : std::nullopt;
  return has_mtplx_key(config) ? std::optional(NormCentre::one) : std::nullopt;
}

// The tap and where it is said.
std::pair<HiddenTap, std::string> tap_of_head(const HeadEvidence& head, const std::string& place,
                                              const RecordedFacts& recorded, const json& config,
                                              const std::string& config_file, const SourceOptions& options) {
  constexpr const char* kKey = "mtp_hidden_tap";
  if (options.mtp_hidden) return {*options.mtp_hidden, "--mtp-hidden"};
  const auto by_head = said_by_head(head, kTaps, kTapKey, recorded.mtp_hidden_tap, place);
  if (recorded.mtp_hidden_tap) return {recorded.mtp_hidden_tap->value, recorded.mtp_hidden_tap->origin};
  if (by_head) return {*by_head, "metadata"};
  const auto said_by = [&](const json& document, const std::string& file) -> std::optional<HiddenTap> {
    if (!document.is_object()) return std::nullopt;
    const ConfigReader reader(document, file);
    return reader.has(kKey) ? std::optional(read_spelling(kTaps, reader.text(kKey), file, kKey)) : std::nullopt;
  };
  if (const auto tap = said_by(config, config_file)) return {*tap, "config.json"};
  if (const auto tap = said_by(head.config, head.config_file)) return {*tap, "the head's config"};
  return {HiddenTap::post_norm, "default"};
}

}  // namespace

void decide_head(CheckpointFacts& facts, const HeadEvidence& head, const RecordedFacts& recorded, const json& config,
                 const std::string& config_file, const SourceOptions& options) {
  const std::optional<NormCentre> norms = norms_of_head(head, facts, recorded, config, options);
  facts.mtp.state = norms ? HeadState::ready : HeadState::ambiguous;
  if (norms)
    facts.mtp.norms = *norms;
  else
    facts.mtp.detail = "nothing says whether its norms are zero- or one-centred";
  std::tie(facts.mtp.tap, facts.mtp.tap_origin) =
      tap_of_head(head, facts.mtp.place, recorded, config, config_file, options);
}

}  // namespace outrider
