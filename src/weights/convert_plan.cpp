#include "weights/convert_plan.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>

#include "base/log.h"
#include "weights/file_error.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr int kLeaveAsStored = 16;
constexpr std::string_view kHeadPrefix = "mtp.";

struct Override {
  std::string pattern;
  int bits = 0;
  int group = 0;
  bool used = false;
};

bool is_affine_bits(int bits) { return bits >= 2 && bits <= 8 && bits != 7; }
bool is_group(int group) { return group == 32 || group == 64 || group == 128; }

int parse_int(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

Override parse_override(const std::string& text, int default_group) {
  const std::size_t equals = text.rfind('=');
  const std::size_t slash = text.find('/', equals == std::string::npos ? text.size() : equals);
  Override out;
  if (equals != std::string::npos) {
    out.pattern = text.substr(0, equals);
    out.bits = parse_int(
        std::string_view(text).substr(equals + 1, slash == std::string::npos ? std::string::npos : slash - equals - 1));
    out.group = slash == std::string::npos ? default_group : parse_int(std::string_view(text).substr(slash + 1));
  }
  if (out.pattern.empty() || !(is_affine_bits(out.bits) || out.bits == kLeaveAsStored) || !is_group(out.group))
    throw Error(ErrorKind::usage,
                fmt::format("override {} is not PATTERN=BITS[/GROUP] (BITS 2, 3, 4, 5, 6, 8, or 16 to leave as stored; "
                            "GROUP 32, 64, 128)",
                            in_quotes(text)),
                "for example 'model.layers.*.mlp.down_proj=8/64'");
  return out;
}

std::vector<Override> read_options(const ConvertOptions& options) {
  if (options.q_bits && !is_affine_bits(*options.q_bits))
    throw Error(ErrorKind::usage, fmt::format("q_bits {} (accepted: 2, 3, 4, 5, 6, 8)", *options.q_bits),
                "name one of these");
  if (!is_group(options.q_group_size))
    throw Error(ErrorKind::usage, fmt::format("q_group_size {} (accepted: 32, 64, 128)", options.q_group_size),
                "name one of these");
  if (options.gguf.requantize_bits != 4 && options.gguf.requantize_bits != 8)
    throw Error(ErrorKind::usage, fmt::format("requantize_bits {} (accepted: 4, 8)", options.gguf.requantize_bits),
                "name one of these");
  std::vector<Override> overrides;
  for (const std::string& text : options.overrides) overrides.push_back(parse_override(text, options.q_group_size));
  return overrides;
}

Dtype dtype_of(FloatType type) {
  return type == FloatType::f32 ? Dtype::F32 : type == FloatType::f16 ? Dtype::F16 : Dtype::BF16;
}

StoredTensor output(std::string name, Dtype dtype, std::vector<std::int64_t> shape) {
  StoredTensor t{std::move(name), dtype, std::move(shape), 0, size_of(dtype)};
  for (const std::int64_t dim : t.shape) t.bytes *= static_cast<std::uint64_t>(dim);
  return t;
}

// What the user wants of a module: bits (16: as stored) and group; bits 0: nothing asked.
struct Wish {
  int bits = 0;
  int group = 0;
};
Wish wish_for(const std::string& path, const ConvertOptions& options, std::vector<Override>& overrides) {
  Wish wish{options.q_bits.value_or(0), options.q_group_size};
  for (Override& rule : overrides) {
    if (fnmatch(rule.pattern.c_str(), path.c_str(), 0) != 0) continue;
    wish = {rule.bits, rule.group};
    rule.used = true;
  }
  return wish;
}

ConvertStep decide_matrix(const std::string& path, const MatrixRows& rows, Wish wish) {
  const ModuleInfo& stored = rows.info;
  ConvertStep step;
  step.is_matrix = true;
  // e2m1 has no float type of its own: scales and biases of what is made of it are bf16, as in a bf16 checkpoint.
  step.type = stored.kind == PackedKind::e2m1 ? FloatType::bf16 : stored.type;
  step.item.name = path;
  step.item.shape = {stored.n, stored.k};
  const bool asked = wish.bits != 0 && wish.bits != kLeaveAsStored;
  const bool same = stored.kind == PackedKind::affine && stored.bits == wish.bits && stored.group == wish.group;
  step.item.requantized = asked && !same && stored.k % wish.group == 0;
  if (asked && stored.k % wish.group != 0)
    log(LogLevel::info, "{}: width {} is not a multiple of the group {}; left as stored", path, stored.k, wish.group);
  if (step.item.requantized || stored.kind == PackedKind::affine) {
    step.item.kind = "affine";
    step.item.bits = step.item.requantized ? wish.bits : stored.bits;
    step.item.group = step.item.requantized ? wish.group : stored.group;
    const Dtype scale = dtype_of(step.type);
    step.outputs = {output(path + ".biases", scale, {stored.n, stored.k / step.item.group}),
                    output(path + ".scales", scale, {stored.n, stored.k / step.item.group}),
                    output(path + ".weight", Dtype::U32, {stored.n, stored.k * step.item.bits / 32})};
  } else if (stored.kind == PackedKind::e2m1) {
    step.item.kind = name_of(rows.fp4.mode);
    step.item.bits = stored.bits;
    step.item.group = stored.group;
    if (rows.fp4.global_scale) step.outputs.push_back(output(path + ".global_scale", Dtype::F32, {}));
    step.outputs.push_back(output(path + ".scales", Dtype::U8, {stored.n, stored.k / stored.group}));
    step.outputs.push_back(output(path + ".weight", Dtype::U32, {stored.n, stored.k / 8}));
  } else {
    step.item.kind = name_of(stored.type);
    step.outputs = {output(path + ".weight", dtype_of(stored.type), {stored.n, stored.k})};
  }
  return step;
}

ConvertStep decide_tensor(const StoredModel::NamedShape& tensor, FloatType type) {
  ConvertStep step;
  step.type = type;
  step.item.name = tensor.name;
  step.item.kind = name_of(type);
  step.item.shape = tensor.shape;
  step.outputs = {output(tensor.name, dtype_of(type), tensor.shape)};
  return step;
}

void refuse_unreadable_head(const StoredModel& source) {
  const CheckpointFacts* facts = source.facts();
  if (facts != nullptr && facts->mtp.state == HeadState::ambiguous)
    throw file_error(facts->mtp.place, fmt::format("the MTP head cannot be converted: {}", facts->mtp.detail),
                     "record \"outrider.mtp_norms\" in outrider.json beside config.json, or say --mtp off");
}

}  // namespace

ConvertDecisions decide_convert(const StoredModel& source, const ConvertOptions& options) {
  std::vector<Override> overrides = read_options(options);
  refuse_unreadable_head(source);
  ConvertDecisions out;
  std::uint64_t weights = 0;
  for (const StoredModel::NamedShape& tensor : source.tensors()) {
    if (tensor.name.ends_with(".rotary_emb.inv_freq")) continue;  // a constant of old checkpoints
    const std::string_view name = tensor.name;
    const bool part = name.ends_with(".scales") || name.ends_with(".biases") || name.ends_with(".global_scale");
    if (part && source.has(tensor.name.substr(0, tensor.name.rfind('.')) + ".weight")) continue;
    if (tensor.shape.size() == 2 && tensor.name.ends_with(".weight")) {
      const std::string path = tensor.name.substr(0, tensor.name.size() - 7);
      const MatrixRows stored = source.rows(path, -1);
      out.steps.push_back(decide_matrix(path, stored, wish_for(path, options, overrides)));
      weights += static_cast<std::uint64_t>(stored.info.n * stored.info.k);
    } else {
      const StoredModel::Values values = source.values(tensor.name);
      out.steps.push_back(decide_tensor(tensor, values.type));
      weights += values.values.size();
    }
  }
  for (const Override& rule : overrides)
    if (!rule.used)
      throw Error(ErrorKind::usage,
                  fmt::format("override pattern {} matches no module that could take it", in_quotes(rule.pattern)),
                  "patterns are matched against whole module paths, as convert --dry-run lists them");
  for (ConvertStep& step : out.steps) {
    for (StoredTensor& t : step.outputs) {
      step.item.bytes += t.bytes;
      t.name = source.written_name(t.name);
    }
    out.plan.tensors += step.outputs.size();
    out.plan.bytes += step.item.bytes;
    out.plan.items.push_back(step.item);
  }
  out.plan.weights = weights;
  out.plan.bits_per_weight =
      weights == 0 ? 0 : 8.0 * static_cast<double>(out.plan.bytes) / static_cast<double>(weights);
  return out;
}

namespace {

// What config.json says of earlier encodings and places of tensors, which the written files no longer have.
void erase_stale_keys(json& config) {
  for (json* object : {&config, config.contains("text_config") ? &config["text_config"] : nullptr})
    if (object != nullptr && object->is_object())
      for (const char* key : {"quantization", "quantization_config", "mtplx_mtp_quantization", "mlx_lm_extra_tensors"})
        object->erase(key);
}

// Adds the quantization map of these steps; the default is what most modules have, so that the map stays short.
void add_quantization(json& config, const std::vector<ConvertStep>& steps) {
  using Form = std::tuple<std::string, int, int>;  // mode, bits, group
  const auto form_of = [](const ConvertItem& item) { return Form(item.kind, item.bits, item.group); };
  const auto parameters = [](const Form& form) {
    return json{{"bits", std::get<1>(form)}, {"group_size", std::get<2>(form)}, {"mode", std::get<0>(form)}};
  };
  std::map<Form, int> counts;
  for (const ConvertStep& step : steps)
    if (step.item.bits != 0) ++counts[form_of(step.item)];
  if (counts.empty()) return;
  const Form most = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
                      return a.second < b.second;
                    })->first;
  json map = parameters(most);
  for (const ConvertStep& step : steps) {
    const Form form = form_of(step.item);
    if (step.item.bits == 0 || form == most) continue;
    const std::string& weight = step.outputs.back().name;  // sorted: the last part of a module
    json& entry = map[weight.substr(0, weight.size() - std::string_view(".weight").size())];
    entry = parameters(form);
    if (std::get<0>(form) == std::get<0>(most)) entry.erase("mode");
  }
  config["quantization"] = map;
  config["quantization_config"] = map;  // the second spelling other tools read
}

}  // namespace

json converted_config(const StoredModel& source, const std::vector<ConvertStep>& steps) {
  json config = source.config();
  erase_stale_keys(config);
  add_quantization(config, steps);
  return config;
}

std::vector<ConvertStep> take_head(std::vector<ConvertStep>& steps) {
  std::vector<ConvertStep> trunk, head;
  for (ConvertStep& step : steps) (step.item.name.starts_with(kHeadPrefix) ? head : trunk).push_back(std::move(step));
  steps = std::move(trunk);
  for (ConvertStep& step : head)
    for (StoredTensor& tensor : step.outputs) tensor.name.erase(0, kHeadPrefix.size());
  return head;
}

json side_car_config(const StoredModel& source, const std::vector<ConvertStep>& head) {
  constexpr int kBlockSize = 5;  // mlx-vlm: drafts of a round + 2
  json text = source.config().contains("text_config") ? source.config()["text_config"] : source.config();
  erase_stale_keys(text);
  json config{{"model_type", "qwen3_5_mtp"}, {"block_size", kBlockSize}, {"text_config", text}};
  config["tie_word_embeddings"] = !source.has("lm_head.weight");
  add_quantization(config, head);
  return config;
}

ConvertPlan plan_convert(const std::filesystem::path& source, const ConvertOptions& options) {
  return decide_convert(*open_stored_model(source, options.gguf, options.reading), options).plan;
}

}  // namespace outrider
