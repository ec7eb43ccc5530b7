#include "weights/safetensors_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/log.h"
#include "weights/file_error.h"
#include "weights/json_strict.h"
#include "weights/quantization_map.h"
#include "weights/quantized.h"
#include "weights/qwen3_5_layout.h"
#include "weights/qwen3_5_source.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

std::optional<FloatType> float_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::F32:
      return FloatType::f32;
    case Dtype::F16:
      return FloatType::f16;
    case Dtype::BF16:
      return FloatType::bf16;
    default:
      return std::nullopt;
  }
}

// Encodings of other tools, by the names of their tensors.
struct Foreign {
  std::string_view suffix;
  std::string_view name;
};
constexpr std::array<Foreign, 4> kForeign{{{".weight_scale_inv", "FP8 blocks"},
                                           {".qweight", "AWQ or GPTQ"},
                                           {".weight_packed", "compressed-tensors"},
                                           {".weight_scale", "FP8 (compressed-tensors)"}}};

// The single (bits, group) that agrees with the columns of weight and scales, and with the width if known.
std::string fitting_parameters(std::int64_t weight_cols, std::int64_t scale_cols, std::int64_t k) {
  std::string found;
  int count = 0;
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const int group : {32, 64, 128}) {
      if (weight_cols * 32 != scale_cols * group * bits || (k >= 0 && scale_cols * group != k)) continue;
      found = fmt::format("; only {} bits, group {} fit", bits, group);
      ++count;
    }
  return count == 1 ? found : "";
}

// Lets go of the source pages of rows [begin, end) of tensors of `n` rows each.
std::function<void(std::int64_t, std::int64_t)> drop_rows(std::vector<CheckpointTensor> tensors, std::int64_t n) {
  return [tensors = std::move(tensors), n](std::int64_t begin, std::int64_t end) {
    if (n == 0) return;
    for (const CheckpointTensor& t : tensors) {
      const std::uint64_t row_bytes = t.tensor->bytes / static_cast<std::uint64_t>(n);
      t.file->drop(*t.tensor, static_cast<std::uint64_t>(begin) * row_bytes,
                   static_cast<std::uint64_t>(end) * row_bytes);
    }
  };
}

// The config of a directory; a wrong directory is named by its missing config before its weights are opened.
nlohmann::json read_config(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  nlohmann::json config = read_json_file(file);
  if (!config.is_object()) throw file_error(file.string(), fmt::format("is {}, not a JSON object", config.type_name()));
  return config;
}

// generation_config.json, or null where there is none or it is malformed.
nlohmann::json read_generation_config(const fs::path& directory) {
  const fs::path file = directory / "generation_config.json";
  std::error_code failed;
  if (!fs::exists(file, failed)) return nullptr;
  try {
    nlohmann::json generation = read_json_file(file);
    if (!generation.is_object()) throw file_error(file.string(), "is not a JSON object");
    return generation;
  } catch (const Error& error) {
    log(LogLevel::warning, "{}; ignored", error.what());
    return nullptr;
  }
}

class FileModel final : public SafetensorsModel {
 public:
  FileModel(const fs::path& path, nlohmann::json config, nlohmann::json generation, Checkpoint checkpoint,
            QuantizationMap map)
      : SafetensorsModel(path, std::move(checkpoint)), map_(std::move(map)) {
    config_ = std::move(config);
    generation_config_ = std::move(generation);
    for (const auto& [name, tensor] : checkpoint_.tensors())
      for (const Foreign& foreign : kForeign)
        if (name.ends_with(foreign.suffix))
          throw tensor_error(path_.string(), name,
                             fmt::format("is of the {} encoding, not available in this version", foreign.name),
                             "take the float (bf16) checkpoint or an MLX or GGUF copy of this model");
  }

  // One log line for each override whose module is not quantized.
  void note_idle_overrides() const {
    for (const auto& [path, parameters] : map_.overrides())
      if (parameters && checkpoint_.find(path + ".scales") == nullptr)
        log(LogLevel::info, "{}: quantization override for {} ignored: it has no scales", path_.string(),
            in_quotes(path));
  }

  std::uint64_t stored_bytes() const override { return checkpoint_.tensor_bytes(); }
  bool has(std::string_view tensor) const override { return checkpoint_.find(tensor) != nullptr; }
  std::vector<NamedShape> tensors() const override {
    std::vector<NamedShape> out;
    for (const auto& [name, found] : checkpoint_.tensors()) out.push_back({name, found.tensor->shape});
    return out;
  }
  std::vector<OpenedFile> weight_files() const override { return checkpoint_.files(); }
  MatrixRows rows(std::string_view path, std::int64_t k) const override;
  Values values(std::string_view tensor) const override;

 private:
  const CheckpointTensor& matrix(const std::string& name) const;
  MatrixRows affine_rows(const std::string& path, const CheckpointTensor& weight, QuantizationParameters parameters,
                         std::int64_t k) const;
  MatrixRows fp4_rows(const std::string& path, const CheckpointTensor& weight, Fp4Mode mode) const;
  MatrixRows mxfp8_rows(const std::string& path, const CheckpointTensor& weight) const;
  const CheckpointTensor& scale_bytes(const std::string& path, std::string_view mode, const CheckpointTensor& weight,
                                      int bits, int group) const;
  std::optional<float> global_scale(const std::string& path, Fp4Mode mode) const;
  MatrixRows dense_rows(const CheckpointTensor& weight, FloatType type) const;

  QuantizationMap map_;
};

const CheckpointTensor& FileModel::matrix(const std::string& name) const {
  const CheckpointTensor* found = checkpoint_.find(name);
  if (found == nullptr) throw missing(name);
  if (found->tensor->shape.size() != 2)
    throw tensor_error(path_.string(), name, fmt::format("is {}, not a matrix", shape_text(found->tensor->shape)));
  return *found;
}

MatrixRows FileModel::rows(std::string_view path, std::int64_t k) const {
  const std::string module(path);
  const CheckpointTensor& weight = matrix(module + ".weight");
  const Dtype dtype = weight.tensor->dtype;
  MatrixRows out;
  if (checkpoint_.find(module + ".scales") != nullptr) {
    const QuantizationParameters parameters = map_.parameters(module);
    if (dtype != Dtype::U32)
      throw tensor_error(path_.string(), module + ".weight",
                         fmt::format("is {}, quantized weights are U32", name_of(dtype)));
    switch (parameters.mode) {
      case QuantizationMode::affine:
        out = affine_rows(module, weight, parameters, k);
        break;
      case QuantizationMode::mxfp4:
        out = fp4_rows(module, weight, Fp4Mode::mxfp4);
        break;
      case QuantizationMode::nvfp4:
        out = fp4_rows(module, weight, Fp4Mode::nvfp4);
        break;
      case QuantizationMode::mxfp8:
        out = mxfp8_rows(module, weight);
        break;
    }
  } else {
    const auto type = float_type(dtype);
    if (!type)
      throw tensor_error(
          path_.string(), module + ".weight",
          fmt::format("is {} without {}.scales (accepted without scales: F16, BF16, F32)", name_of(dtype), module),
          "take the float (bf16) checkpoint or an MLX or GGUF copy of this model");
    out = dense_rows(weight, *type);
  }
  out.info.has_bias = checkpoint_.find(module + ".bias") != nullptr;
  return out;
}

MatrixRows FileModel::affine_rows(const std::string& path, const CheckpointTensor& weight,
                                  QuantizationParameters parameters, std::int64_t k) const {
  const CheckpointTensor& scales = matrix(path + ".scales");
  const CheckpointTensor& biases = matrix(path + ".biases");
  const auto type = float_type(scales.tensor->dtype);
  if (!type || biases.tensor->dtype != scales.tensor->dtype || biases.tensor->shape != scales.tensor->shape)
    throw tensor_error(path_.string(), path + ".scales",
                       fmt::format("scales {} {}, biases {} {} (accepted: the same shape and one of F16, BF16, F32)",
                                   name_of(scales.tensor->dtype), shape_text(scales.tensor->shape),
                                   name_of(biases.tensor->dtype), shape_text(biases.tensor->shape)));
  const std::int64_t n = weight.tensor->shape[0], weight_cols = weight.tensor->shape[1],
                     scale_cols = scales.tensor->shape[1];
  const std::int64_t width = scale_cols * parameters.group;
  if (scales.tensor->shape[0] != n || weight_cols * 32 != width * parameters.bits || (k >= 0 && width != k))
    throw tensor_error(
        path_.string(), path + ".weight",
        fmt::format("weight {} and scales {} do not fit {} bits, group {}{}{}", shape_text(weight.tensor->shape),
                    shape_text(scales.tensor->shape), parameters.bits, parameters.group,
                    k >= 0 ? fmt::format(" at width {}", k) : "", fitting_parameters(weight_cols, scale_cols, k)),
        "correct \"quantization\" in config.json");
  AffineMatrix memory{parameters.bits, parameters.group, *type, n, width, nullptr, nullptr, nullptr};
  memory.weight = weight.file->bytes(*weight.tensor).data();
  memory.scales = scales.file->bytes(*scales.tensor).data();
  memory.biases = biases.file->bytes(*biases.tensor).data();
  MatrixRows out = rows_of(memory);
  out.parts = {".weight", ".scales", ".biases"};
  out.affine = [read = std::move(out.affine), memory, path, origin = path_.string()](
                   std::int64_t row, std::uint8_t* codes, std::byte* row_scales, std::byte* row_biases) {
    read(row, codes, row_scales, row_biases);
    const std::size_t size = size_of(memory.type);
    for (std::int64_t g = 0; g < memory.k / memory.group; ++g)
      if (!std::isfinite(load_float(row_scales + g * size, memory.type)) ||
          !std::isfinite(load_float(row_biases + g * size, memory.type)))
        throw tensor_error(origin, path + ".scales",
                           fmt::format("scale or bias of row {}, group {} is not finite", row, g));
  };
  out.drop = drop_rows({weight, scales, biases}, n);
  return out;
}

// The scale bytes of an fp mode, checked against the codes of `bits` bits.
const CheckpointTensor& FileModel::scale_bytes(const std::string& path, std::string_view mode,
                                               const CheckpointTensor& weight, int bits, int group) const {
  const CheckpointTensor& scales = matrix(path + ".scales");
  const std::int64_t n = weight.tensor->shape[0], k = weight.tensor->shape[1] * (32 / bits);
  if (scales.tensor->dtype != Dtype::U8 || scales.tensor->shape != std::vector<std::int64_t>{n, k / group} ||
      k % group != 0)
    throw tensor_error(
        path_.string(), path + ".scales",
        fmt::format("is {} {} (weight {} in mode {} needs U8 [{}, {}])", name_of(scales.tensor->dtype),
                    shape_text(scales.tensor->shape), shape_text(weight.tensor->shape), mode, n, k / group),
        "correct \"quantization\" in config.json");
  return scales;
}

std::optional<float> FileModel::global_scale(const std::string& path, Fp4Mode mode) const {
  const std::string name = path + ".global_scale";
  if (mode != Fp4Mode::nvfp4 || checkpoint_.find(name) == nullptr) return std::nullopt;
  const Values read = values(name);
  if (read.values.size() != 1 || !std::isfinite(read.values[0]) || read.values[0] < 0)
    throw tensor_error(
        path_.string(), name,
        fmt::format("is {} (accepted: one finite value, at least 0)",
                    read.values.size() == 1 ? fmt::format("{}", read.values[0]) : shape_text(read.shape)));
  return read.values[0];
}

MatrixRows FileModel::fp4_rows(const std::string& path, const CheckpointTensor& weight, Fp4Mode mode) const {
  const CheckpointTensor& scales = scale_bytes(path, name_of(mode), weight, 4, group_of(mode));
  E2m1Matrix memory{{mode, global_scale(path, mode)}, weight.tensor->shape[0], weight.tensor->shape[1] * 8};
  memory.weight = weight.file->bytes(*weight.tensor).data();
  memory.scales = scales.file->bytes(*scales.tensor).data();
  MatrixRows out = rows_of(memory);
  out.parts = {".weight", ".scales"};
  if (memory.fp4.global_scale) out.parts.push_back(".global_scale");
  out.e2m1 = [read = std::move(out.e2m1), memory, path, origin = path_.string()](std::int64_t row, std::uint8_t* codes,
                                                                                 std::uint8_t* row_scales) {
    read(row, codes, row_scales);
    if (const auto bad = group_without_values(memory.fp4, {codes, static_cast<std::size_t>(memory.k)}, row_scales))
      throw tensor_error(origin, path + ".scales",
                         fmt::format("scale byte {} of row {}, group {} gives values that are not finite",
                                     row_scales[*bad], row, *bad));
  };
  out.drop = drop_rows({weight, scales}, memory.n);
  return out;
}

// mxfp8 runs as dense (numerics.md 2). e4m3 * 2^e has 4 significant bits and is at least 2^(e-9), so bf16 holds every
// value of a group whose scale is at least 2^(-126+9); a matrix with a smaller scale is kept in f32.
MatrixRows FileModel::mxfp8_rows(const std::string& path, const CheckpointTensor& weight) const {
  const CheckpointTensor& scales = scale_bytes(path, "mxfp8", weight, 8, kMxfp8Group);
  const std::int64_t n = weight.tensor->shape[0], k = weight.tensor->shape[1] * 4;
  constexpr std::uint8_t kLeastOfBf16 = 127 - 126 + 9;
  const auto exponents = scales.file->bytes(*scales.tensor);
  const bool small = std::any_of(exponents.begin(), exponents.end(),
                                 [](std::byte e) { return std::to_integer<std::uint8_t>(e) < kLeastOfBf16; });
  MatrixRows out;
  out.info = {PackedKind::dense, small ? FloatType::f32 : FloatType::bf16, 0, 0, n, k, false};
  out.parts = {".weight", ".scales"};
  out.dense = [codes = weight.file->bytes(*weight.tensor), exponents, k, type = out.info.type, path,
               origin = path_.string()](std::int64_t row, std::byte* values) {
    std::vector<float> decoded(static_cast<std::size_t>(k));
    dequantize_mxfp8(codes.data() + row * k, exponents.data() + row * (k / kMxfp8Group), decoded);
    for (std::size_t j = 0; j < decoded.size(); ++j) {
      if (!std::isfinite(decoded[j]))
        throw tensor_error(origin, path + ".weight", fmt::format("value [{}, {}] is not finite", row, j));
      store_float(values + j * size_of(type), type, decoded[j]);
    }
  };
  out.drop = drop_rows({weight, scales}, n);
  return out;
}

MatrixRows FileModel::dense_rows(const CheckpointTensor& weight, FloatType type) const {
  const std::int64_t n = weight.tensor->shape[0], k = weight.tensor->shape[1];
  MatrixRows out = rows_of(DenseMatrix{type, n, k, weight.file->bytes(*weight.tensor).data()});
  out.drop = drop_rows({weight}, n);
  return out;
}

StoredModel::Values FileModel::values(std::string_view tensor) const {
  const CheckpointTensor* found = checkpoint_.find(tensor);
  if (found == nullptr) throw missing(tensor);
  const auto type = float_type(found->tensor->dtype);
  if (!type)
    throw tensor_error(path_.string(), tensor,
                       fmt::format("is {} (accepted: F16, BF16, F32)", name_of(found->tensor->dtype)),
                       "take the float (bf16) checkpoint or an MLX or GGUF copy of this model");
  const auto bytes = found->file->bytes(*found->tensor);
  Values out{*type, found->tensor->shape, std::vector<float>(bytes.size() / size_of(*type))};
  for (std::size_t i = 0; i < out.values.size(); ++i)
    out.values[i] = load_float(bytes.data() + i * size_of(*type), *type);
  found->file->drop(*found->tensor, 0, found->tensor->bytes);
  return out;
}

}  // namespace

std::unique_ptr<SafetensorsModel> open_raw_directory(const fs::path& directory) {
  nlohmann::json config = read_config(directory);
  nlohmann::json generation = read_generation_config(directory);
  const std::string origin = (directory / "config.json").string();
  Checkpoint checkpoint(directory);
  QuantizationMap map = QuantizationMap::from_config(config, origin);
  auto model = std::make_unique<FileModel>(directory, std::move(config), std::move(generation), std::move(checkpoint),
                                           std::move(map));
  model->note_idle_overrides();
  return model;
}

std::unique_ptr<SafetensorsModel> open_side_car(const fs::path& directory, const std::vector<std::string>& files,
                                                const nlohmann::json& config, const std::string& origin,
                                                std::string_view prefix) {
  const fs::path path = files.size() == 1 ? directory / files.front() : directory;
  return std::make_unique<FileModel>(path, config, nullptr, Checkpoint(directory, files, prefix),
                                     QuantizationMap::from_config(config, origin, prefix));
}

std::unique_ptr<StoredModel> open_safetensors_model(const fs::path& directory, const SourceOptions& options) {
  auto model = open_raw_directory(directory);
  if (is_qwen3_5(model->config())) return read_as_qwen3_5(std::move(model), options);
  return model;
}

}  // namespace outrider
